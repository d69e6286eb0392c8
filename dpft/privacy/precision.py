"""Products of norms and sums: in the precision of their factors, and rounded to float32 only.

TF32 (by default for convolutions on a GPU) and ``torch.set_float32_matmul_precision("medium")``
round the factors of a product to 11 or 8 bits. A norm is then that of another gradient than the one
that is summed, and where a record's gradient cancels over its positions the two may have nothing in
common: clipping would let any multiple of the threshold through. `full_precision` forbids both.

Factors that are in bfloat16 already need no rounding. The product of two such numbers has at most
16 significant bits and is exact in float32, so that hardware for bfloat16 that adds up in float32
computes what float32 would, many times faster: `mm`, `bmm` and `addmm_` use it on a GPU that has
it, and multiply the same numbers in float32 elsewhere.

**Sums in bfloat16: what is rounded there, and how much a clip factor must allow for it.**

Under autocast a linear layer has its input ``a`` and output gradient ``g`` in bfloat16, and the
sum ``sum_i c_i sum_t g_it a_it^T`` is a product in bfloat16 too, if the clip factor is multiplied
into one of them: ``a``, rounded again. Record ``i`` adds not ``c G`` but ``X = sum_t g_t b_t^T``
with ``b_t`` the rounded ``c a_t``. Products of such numbers are exact in float32, and what adding
them up in float32 loses is counted as everywhere (`rules.base.floor` of clipping). What is left is
``b_t``.

Guarantee: with the factor of the norm ``n + r``, no record adds more than its threshold, where

    r = u sqrt(sum_W Q_W^2),  Q^2 = sum_ts |<g_t, g_s>| (|a_t| + f) (|a_s| + f),

over the weights ``W`` of a group that are summed so. Proof, for ``c >= SMALLEST``:

1. In float32 ``x = c a_tj (1 + e1) + z1`` with ``|e1| <= 2^-24``, and in bfloat16, of 8
   significant bits, ``b_tj = x (1 + e2) + z2`` with ``|e2| <= 2^-8``: both round to the nearest.
   Results below the smallest normal number may become a multiple of something, or zero:
   ``|z| <= 2^-126``. Nothing overflows for ``c <= 1``, since ``a_tj`` did not.
2. So ``b_t = c a_t + d_t`` with ``|d_tj| <= v c |a_tj| + 2^-125``, ``v = 2^-8 (1 + 2^-15)``. With
   up to 2^26 inputs ``|d_t| <= v c |a_t| + 2^-112``, and since ``v c f > 2^-110`` for
   ``f = 2^-40`` and ``c >= 2^-60``, ``|d_t| <= v c (|a_t| + f)``.
3. ``X = c G + D`` with ``D = sum_t g_t d_t^T`` and ``|D|^2 = sum_ts <g_t, g_s> <d_t, d_s>``, at
   most ``sum_ts |<g_t, g_s>| |d_t| |d_s| <= (v c Q)^2``.
4. Over the weights of a group, and with all of its other gradients, which are summed in float32,
   ``|X| <= c (n + v sqrt(sum Q_W^2))`` by the triangle inequality. Several uses of one weight are
   one use of more positions.
5. ``u = 2^-8 (1 + 2^-6)`` instead of ``v`` covers the rounding of ``Q``. An inner product in
   float32 is off by a few roundings of ``|g_t| |g_s|``; ``2^-16 |g_t| |g_s|`` is added to each,
   times ``|a_t| |a_s|``: a sixteenth of ``f`` would do in step 2, and its rest covers its own.
6. Both clip functions give ``c <= C / (n + r)``, so that ``|X| <= C``. A smaller factor than
   ``SMALLEST``, of a norm 1e18 times the threshold, counts as 0.

``Q`` is the norm that the gradient would have if inputs of different positions were parallel, and
output gradients as nearly so as they are: twice the norm for a pretrained GPT-2, so a clipped
record is shorter than ``C`` by a hundredth. For a rounded ``g`` it would be larger. The weaker
bound ``Q <= S = sum_t |g_t| (|a_t| + f)``, 3 to 8 times the norm there, is for where no Gram
matrix is formed: with one position, where all three are the same, and with `lee_kifer`. Gradients
that are formed and kept are multiplied with their factors in float32 and need none of this.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

_REDUCED = ("tf32", "bf16")


@contextmanager
def full_precision() -> Iterator[None]:
    """Within this context products are rounded once, to float32, and so are their partial sums."""
    b: Any = torch.backends
    products = (b.cuda.matmul, b.cudnn.conv, b.mkldnn.matmul, b.mkldnn.conv)
    changed = [(kind, kind.fp32_precision) for kind in products if kind.fp32_precision in _REDUCED]
    for backend, _ in changed:
        backend.fp32_precision = "ieee"
    cuda = b.cuda.matmul
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


SMALLEST = 2.0**-60
"""The smallest clip factor that is multiplied into a number in bfloat16."""

_UNIT = 2.0**-8 * (1 + 2.0**-6)
LEAST_LENGTH = 2.0**-40
_PRODUCT_ROUNDING = 2.0**-16


def scaled_halves(a: Tensor, weights: Tensor) -> Tensor:
    """Return ``weights[i] a[i]`` in bfloat16, ``(B, T, d)``: float32 products, rounded once."""
    kept = F.threshold(weights, SMALLEST, 0.0)
    return torch.mul(a, kept[:, None, None], out=torch.empty_like(a))


def rounding_by_gram(gram_a: Tensor, gram_g: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(u Q)^2`` and ``(sum_t |a_t| |g_t|)^2``, ``(B,)``, from Gram matrices."""
    squares = [gram.diagonal(dim1=1, dim2=2) for gram in (gram_a, gram_g)]
    a, g = torch.stack(squares).clamp_(min=0).sqrt_()
    product = (a * g).sum(1).square()
    a = a + LEAST_LENGTH
    # Not by einsum, which looks for an order of products at every call: a GPU waits meanwhile.
    squared = torch.bmm(a[:, None], torch.bmm(gram_g.abs(), a[:, :, None])).flatten()
    return allowance(squared, product), product


def allowance(squared: Tensor, product: Tensor) -> Tensor:
    """``(u Q)^2`` from ``Q^2`` and what bounds the roundings of its terms; in place of ``Q^2``."""
    return squared.add_(product, alpha=_PRODUCT_ROUNDING).mul_(_UNIT**2)


def rounding_by_lengths(a: Tensor, g: Tensor) -> Tensor:
    """Return ``(u S)^2`` of each record from ``|a_t|`` and ``|g_t|``, ``(B, T)`` each."""
    terms: Tensor = ((a + LEAST_LENGTH) * g).sum(1)
    return _UNIT**2 * (1 + _PRODUCT_ROUNDING) * terms.square()
