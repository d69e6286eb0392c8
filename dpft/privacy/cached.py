"""A cache on disk for numbers that take long to compute; losing it costs time and nothing else."""

import contextlib
import functools
import importlib.metadata
import itertools
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_VERSION = 1  # part of every key: raise it whenever a number that is kept can change
_BY = ("dp-accounting", "prv-accountant")
_MOST_ENTRIES = 10_000

_Numbers = Callable[..., tuple[float, ...]]


def cache_folder() -> Path:
    """``$DPFT_CACHE_DIR``, else ``dpft`` in the user's cache folder.

    Raises:
        RuntimeError: the user has no home folder.
    """
    if folder := os.environ.get("DPFT_CACHE_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dpft")


def disk_cached(count: int) -> Callable[[_Numbers], _Numbers]:
    """Remember the ``count`` ascending numbers above 0 that a function returned, by its keywords.

    A record names the accountants that are installed, which must be those that computed them.
    """

    def decorate(function: _Numbers) -> _Numbers:
        @functools.wraps(function)
        def cached(**arguments: Any) -> tuple[float, ...]:
            by = [_VERSION, *map(importlib.metadata.version, _BY), function.__name__]
            key = json.dumps([*by, arguments], sort_keys=True)
            hit = _read().get(key)
            # Neither NaN nor other types are.
            if (
                isinstance(hit, list)
                and len(hit) == count
                and all(type(x) is float for x in hit)
                and all(low <= high for low, high in itertools.pairwise([0.0, *hit]))
            ):
                return tuple(hit)
            value = function(**arguments)
            _write({**_read(), key: value})
            return value

        return cached

    return decorate


def _path() -> Path:
    return cache_folder() / "accounting.json"


def _read() -> dict[str, Any]:
    # A cache that cannot be read is an empty one: it saves time and must never stop a run.
    try:
        entries = json.loads(_path().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # RecursionError is a RuntimeError
        return {}
    return entries if isinstance(entries, dict) else {}


def _write(entries: dict[str, Any]) -> None:
    # Readers see the old file or the new one. Two writers at once may lose an entry: harmless.
    with contextlib.suppress(OSError, RuntimeError):
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
                json.dump(dict(list(entries.items())[-_MOST_ENTRIES:]), file)
            Path(file.name).replace(path)
