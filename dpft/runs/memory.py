"""How much memory this process holds, and held at most; whether it ran out."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpft.config.errors import TrainingError

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
# proc(5): writing this resets the resident set's high-water mark.
_RESET_PEAK = "5"
# How allocators say that there is none: torch's on the CPU, CUDA's, and those of its libraries.
_SAID = ("can't allocate memory", "out of memory", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, of the machine or of the GPU."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID)


@contextmanager
def explained(doing: str, advice: str) -> Iterator[None]:
    """Within this context running out of memory is a TrainingError."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        said = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise TrainingError(
            f"out of memory in {doing} ({said}); expected room for it: {advice}"
        ) from error


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
