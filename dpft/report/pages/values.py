"""Values of a run's files, any of which may be missing or damaged: a page shows what there is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def section(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a mapping; empty if it is not there or is no mapping."""
    value = mapping.get(name)
    return value if isinstance(value, Mapping) else {}


def finite(value: Any) -> float | None:
    """A number of a record; None if it is none, or not a finite one."""
    whole = isinstance(value, float | int) and not isinstance(value, bool)
    return float(value) if whole and math.isfinite(value) else None


def parsed(line: str | bytes) -> dict[str, Any] | None:
    """A line of JSON; None if it is no mapping."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
