"""A small file of answers that took seconds to compute; losing it costs time and nothing else."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpft.privacy.cached import cache_folder

ACCOUNTING_VERSION = 1  # part of every key: raise it whenever a cached number can change
CACHE_MAX_ENTRIES = 10_000


def _cache_path() -> Path:
    return cache_folder() / "accounting.json"


def _read_cache() -> dict[str, Any]:
    # A cache that cannot be read is an empty one: it saves time and must never stop a run.
    try:
        entries = json.loads(_cache_path().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # RecursionError is a RuntimeError
        return {}
    return entries if isinstance(entries, dict) else {}


def _write_cache(key: str, value: tuple[float, ...]) -> None:
    entries = {**_read_cache(), key: value}
    temporary: Path | None = None
    try:
        path = _cache_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Readers see the old file or the new one. Two writers at once may lose an entry: harmless.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            temporary = Path(file.name)
            json.dump(dict(list(entries.items())[-CACHE_MAX_ENTRIES:]), file)
        temporary.replace(path)
    except (OSError, RuntimeError):
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _library() -> str | None:
    """The version of the library whose bounds are believed as they are stored, if it is there.

    A record names the version that is installed, which must be the one that computed them.
    """
    try:
        return importlib.metadata.version("prv-accountant")
    except importlib.metadata.PackageNotFoundError:
        return None


_Numbers = Callable[..., tuple[float, ...]]


def disk_cached(count: int) -> Callable[[_Numbers], _Numbers]:
    """Remembers the ``count`` numbers that a function returned, by its name and keywords."""

    def decorate(function: _Numbers) -> _Numbers:
        @functools.wraps(function)
        def cached(**arguments: Any) -> tuple[float, ...]:
            by = [ACCOUNTING_VERSION, _library(), function.__name__]
            key = json.dumps([*by, arguments], sort_keys=True)
            hit = _read_cache().get(key)
            # Whatever is stored here is >= 0 and ascending; NaN and other types are not.
            if (
                isinstance(hit, list)
                and len(hit) == count
                and all(type(x) is float for x in hit)
                and all(low <= high for low, high in itertools.pairwise([0.0, *hit]))
            ):
                return tuple(hit)
            value = function(**arguments)
            _write_cache(key, value)
            return value

        return cached

    return decorate
