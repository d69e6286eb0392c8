"""Peak memory of the steady state, without what warming up and verifying took."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from pathlib import Path
from typing import Protocol

import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
# proc(5): writing this resets the resident set's high-water mark.
_RESET_PEAK = "5"


class Meter(Protocol):
    """Reads memory in bytes; `method` says what the peak is, once `reset` was called."""

    method: str

    def now(self) -> int | None: ...

    def reset(self) -> None: ...

    def peak(self) -> int: ...


class CudaMeter:
    """What torch's allocator handed out; the context and other processes do not count."""

    method = "torch.cuda.max_memory_allocated after warm-up"

    def now(self) -> int:
        return torch.cuda.memory_allocated()

    def reset(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated()


class CpuMeter:
    """Resident memory of the whole process: Python, torch, weights, gradients, activations."""

    method = "VmHWM after warm-up"

    def now(self) -> int | None:
        return _status("VmRSS")

    def reset(self) -> None:
        gc.collect()
        _trim()
        try:
            _CLEAR_REFS.write_text(_RESET_PEAK)
        except OSError:
            # Not Linux, or not allowed: the lifetime's peak has to do, and says so.
            self.method = "ru_maxrss, warm-up and verification included"

    def peak(self) -> int:
        peak = _status("VmHWM")
        if peak is not None and self.method == CpuMeter.method:
            return peak
        self.method = "ru_maxrss, warm-up and verification included"
        # Kilobytes on Linux, bytes on macOS.
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def meter(device: str) -> Meter:
    """The meter of a device, ``cpu`` or ``cuda``."""
    return CudaMeter() if device == "cuda" else CpuMeter()


def _status(field: str) -> int | None:
    """A field of ``/proc/self/status`` in bytes."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None


def _trim() -> None:
    """Give freed heap back to the system, or it would count as in use."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return  # another C library than GNU's
