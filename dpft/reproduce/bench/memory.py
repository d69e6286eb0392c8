"""Peak memory without what warming up and verifying took."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

import torch

from dpft.runs import memory


class CudaMeter:
    """What torch's allocator handed out; the context and other processes do not count."""

    method = "torch.cuda.max_memory_allocated after warm-up"

    def now(self) -> int | None:
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
        # Freed heap would count as in use. Other C libraries than GNU's have no such function.
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)
        if not memory.forget_peak():
            self._fall_back()

    def peak(self) -> int:
        peak = memory.resident("VmHWM")
        if peak is None:
            self._fall_back()
        return memory.lifetime_peak() if peak is None or self.method != CpuMeter.method else peak

    def _fall_back(self) -> None:
        # The lifetime's peak has to do, and says so.
        self.method = "ru_maxrss, warm-up and verification included"


Meter = CudaMeter | CpuMeter


def meter(device: str) -> Meter:
    """The meter of a device, ``cpu`` or ``cuda``; reads bytes; `method` says what the peak is."""
    return CudaMeter() if device == "cuda" else CpuMeter()
