"""Products of norms and sums: in the precision of their factors, and rounded to float32 only.

TF32 (by default for convolutions on a GPU) and ``torch.set_float32_matmul_precision("medium")``
round the factors of a product to 11 or 8 bits. A norm is then that of another gradient than the one
that is summed, and where a record's gradient cancels over its positions the two may have nothing in
common: clipping would let any multiple of the threshold through. `full_precision` forbids both.

Factors that are in bfloat16 already need no rounding. The product of two such numbers has at most
16 significant bits and is exact in float32, so that hardware for bfloat16 that adds up in float32
computes what float32 would, many times faster: `mm`, `bmm` and `addmm_` use it on a GPU that has
it, and multiply the same numbers in float32 elsewhere.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

_REDUCED = ("tf32", "bf16")


def _backends() -> tuple[Any, ...]:
    b: Any = torch.backends
    return b.cuda.matmul, b.cudnn.conv, b.mkldnn.matmul, b.mkldnn.conv


@contextmanager
def full_precision() -> Iterator[None]:
    """Within this context products are rounded once, to float32, and so are their partial sums."""
    changed = [(b, b.fp32_precision) for b in _backends() if b.fp32_precision in _REDUCED]
    for backend, _ in changed:
        backend.fp32_precision = "ieee"
    cuda: Any = torch.backends.cuda.matmul
    # A product that is cut along its sum may add up the parts in bfloat16.
    reduced = cuda.allow_bf16_reduced_precision_reduction
    if reduced:
        cuda.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        for backend, before in changed:
            backend.fp32_precision = before
        if reduced:
            cuda.allow_bf16_reduced_precision_reduction = reduced


_simulated = False


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Within this context every device counts as a GPU that multiplies numbers in bfloat16.

    For simulations: fake tensors on the CPU then go a GPU's way.
    """
    global _simulated
    before, _simulated = _simulated, True
    try:
        yield
    finally:
        _simulated = before


def multiplies_halves(device: torch.device) -> bool:
    """Return whether a device multiplies numbers in bfloat16 and adds up in float32, by itself."""
    return _simulated or _multiplies_halves(device)


@lru_cache
def _multiplies_halves(device: torch.device) -> bool:
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def waits(device: torch.device) -> bool:
    """Return whether the host waits for a device when it reads a number there."""
    return _simulated or device.type != "cpu"


def on_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor, which nothing changes afterwards, without a wait of the host."""
    if device.type == "cuda" and x.device.type == "cpu" and not _simulated:
        x = x.pin_memory()  # else the copy may wait for the kernels before it
    return x.to(device, non_blocking=device.type != "cpu")


def mm(x: Tensor, y: Tensor) -> Tensor:
    """``x y`` of matrices, in float32 where both are in half precision."""
    if in_halves(x, y):
        return torch.mm(x, y, out_dtype=torch.float32)
    return torch.mm(*_widened(x, y))


def bmm(x: Tensor, y: Tensor) -> Tensor:
    """``x y`` of stacks of matrices, in float32 where both are in half precision."""
    if in_halves(x, y):
        return torch.bmm(x, y, out_dtype=torch.float32)
    return torch.bmm(*_widened(x, y))


def addmm_(out: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Add ``x y`` to ``out``, which is no narrower than float32."""
    if out.dtype == torch.float32 and in_halves(x, y):
        torch.addmm(out, x, y, out_dtype=torch.float32, out=out)
        return out
    x, y = _widened(x, y)
    return out.addmm_(x.to(out.dtype), y.to(out.dtype))


def norm_kernels(*factors: Tensor) -> ModuleType | None:
    """Return `dpft.privacy.kernels` for factors that it may multiply.

    On a GPU where it was seen to give the right numbers; None elsewhere, and in simulations.
    """
    found = None if _simulated else _norm_kernels(factors[0].device)
    return found if found and all(x.dtype in found.DTYPES for x in factors) else None


@lru_cache
def _norm_kernels(device: torch.device) -> ModuleType | None:
    if device.type != "cuda" or not _multiplies_halves(device):
        return None
    try:
        from dpft.privacy import kernels

        with _disable_current_modes():  # the caller may be traced
            kernels.check(device)
    except ImportError:
        return None
    except Exception as error:  # whatever a compiler raises: norms are to be had without it
        warnings.warn(
            f"norms are computed by operations of torch, slower, since their kernel failed on "
            f"{device}: {type(error).__name__}: {error}",
            stacklevel=2,
        )
        return None
    return kernels


def in_halves(x: Tensor, y: Tensor) -> bool:
    """Return whether the product of two tensors is one in bfloat16."""
    return x.dtype == y.dtype == torch.bfloat16 and multiplies_halves(x.device)


def _widened(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one type, float32 at least: products of numbers in bfloat16 are exact there."""
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    return x.to(dtype), y.to(dtype)
