"""Peak memory without what warming up and verifying took."""

from __future__ import annotations

import ctypes
import gc
from typing import Protocol

import torch

from dpft.runs import memory


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
        return memory.resident("VmRSS")

    def reset(self) -> None:
        gc.collect()
        _trim()
        if not memory.forget_peak():
            # The lifetime's peak has to do, and says so.
            self.method = "ru_maxrss, warm-up and verification included"

    def peak(self) -> int:
        peak = memory.resident("VmHWM")
        if peak is not None and self.method == CpuMeter.method:
            return peak
        self.method = "ru_maxrss, warm-up and verification included"
        return memory.lifetime_peak()


def meter(device: str) -> Meter:
    """The meter of a device, ``cpu`` or ``cuda``."""
    return CudaMeter() if device == "cuda" else CpuMeter()


def _trim() -> None:
    """Give freed heap back to the system, or it would count as in use."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return  # another C library than GNU's
