"""How much memory this process holds, and held at most."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
# proc(5): writing this resets the resident set's high-water mark.
_RESET_PEAK = "5"


def resident(field: str) -> int | None:
    """Bytes of ``VmRSS`` (now) or ``VmHWM`` (at most); None where the system tells neither."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None


def forget_peak() -> bool:
    """Begin a new ``VmHWM``; False if it cannot be done: not Linux, or not allowed."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def lifetime_peak() -> int:
    """Bytes that the process had resident at most, ever."""
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
