"""The peak memory of this process, and errors of running out of memory."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpft.config.errors import TrainingError

# Messages of allocators: torch's on the CPU, CUDA's, and those of its libraries.
_MESSAGES = ("can't allocate memory", "out of memory", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory ran out, of the machine or of the GPU."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES)


@contextmanager
def explained(doing: str, advice: str) -> Iterator[None]:
    """Turn running out of memory within this context into a TrainingError."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise TrainingError(
            f"out of memory in {doing} ({first}); expected room for it: {advice}"
        ) from error


def peak() -> int:
    """Return the most bytes that were resident since `forget_peak`, or ever."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:  # not Linux
        pass
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_peak() -> bool:
    """Let `peak` start anew; False if that cannot be done: not Linux, or not allowed."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the high-water mark
    except OSError:
        return False
    return True
