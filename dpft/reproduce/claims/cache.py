"""Computed numbers kept on disk for the same code: importing torch for them takes two seconds."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dpft
from dpft.privacy.cached import cache_folder
from dpft.reproduce.claims.computed import FUNCTIONS, Numbers
from dpft.runs.atomic import write_atomic

# What the numbers are computed with.
_SOURCES = ("privacy/**/*.py", "reproduce/claims/computed.py", "reproduce/figures/memory.py")
_PACKAGES = ("dp-accounting", "numpy", "scipy", "torch")


def numbers_of(function: str, arguments: Mapping[str, Any]) -> Numbers:
    """What a function of `dpft.reproduce.claims.computed` returns, now or in an earlier process."""
    key, known = json.dumps([function, arguments]), _read()
    if not isinstance(known.get(key), dict) or "value" not in known[key]:
        known[key] = FUNCTIONS[function](**arguments)
        # A cache that cannot be written saves no time, and must not stop anything.
        with contextlib.suppress(OSError, RuntimeError):
            _path().parent.mkdir(parents=True, exist_ok=True)
            write_atomic(_path(), json.dumps({_code(): known}))
    numbers: Numbers = known[key]
    return numbers


def _path() -> Path:
    return cache_folder() / "claims.json"


def _read() -> dict[str, Any]:
    try:
        known = json.loads(_path().read_text(encoding="utf-8"))[_code()]
    except (OSError, ValueError, LookupError, TypeError, RuntimeError):
        return {}  # damaged, or of other code
    return known if isinstance(known, dict) else {}


@functools.cache
def _code() -> str:
    root = Path(dpft.__file__).parent
    digest = hashlib.sha256()
    for pattern in _SOURCES:
        for file in sorted(root.glob(pattern)):
            digest.update(file.read_bytes())
    versions = [importlib.metadata.version(name) for name in _PACKAGES]
    return f"{digest.hexdigest()} {' '.join(versions)}"
