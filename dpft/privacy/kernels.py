"""Squared norms on a GPU without a Gram matrix in memory: one Triton kernel for a layer's norms.

With ``A = a a^T`` and ``G = g g^T`` of one record, both ``(T, T)``, the squared norm of a linear
weight's gradient is ``sum_st A_st G_st`` (Li et al. 2022, eq. 2). A tile of both matrices is formed
in registers, multiplied, summed, and forgotten. Products are those of `dpft.privacy.precision`:
bfloat16 factors are multiplied exactly and added up in float32, float32 factors in float32, never
in TF32. Each program writes separate sums, which are added up in a fixed order, so that a step
repeated has the same bits.

Triton comes with torch for CUDA. `dpft.privacy.precision.norm_kernels` returns this module for
devices on which `check` was seen to pass, and for no other.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float32)  # of factors

_ROWS = 64  # positions along each side of a tile
_SIDE = tl.constexpr(_ROWS)


def gram_sums(a: Tensor, g: Tensor, weights: Tensor | None = None) -> Sequence[Tensor]:
    """Sum over the Gram matrices of each record's ``a`` and ``g``, in float32.

    Args:
        a: ``(B, T, d)``, or ``(B, T)`` in int64: rows of a table, whose one-hot vectors are meant.
        g: ``(B, T, p)``. Both of one of `DTYPES`, not necessarily the same; any strides.
        weights: ``w``, ``(B, T)`` in float32; ones by default.

    Returns:
        ``sum_st A_st G_st``; ``sum_st |G_st| w_s w_t``, 0 by default; ``(sum_t w_t sqrt(G_tt))^2``;
        ``sum_t w_t^2``; ``sum_t G_tt``: ``(B,)`` each.
    """
    sums: Tensor = _gram_sums([a], [g], [] if weights is None else [weights])
    return sums.select(0, 0).unbind()


# Inductor may leave gaps between rows, so that their addresses are round: kernels take strides.
_TAGS = (torch.Tag.flexible_layout,)


@torch.library.custom_op("dpft::gram_sums", mutates_args=(), tags=_TAGS)
def _gram_sums(a: Sequence[Tensor], g: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Sums of ``N`` layers whose tensors have one shape, in one launch: ``(N, 5, B)``."""
    a, g = _of_one_layout(a), _of_one_layout(g)
    layers, (records, length, _) = len(g), g[0].shape
    tiles = triton.cdiv(length, _ROWS) ** 2
    sums = g[0].new_empty(layers, records, tiles, 2, dtype=torch.float32)
    squares = sums.new_empty(layers, records, length)
    w = torch.stack(list(weights)) if weights else None
    tokens = a[0].dim() == 2
    first = (a[0].unsqueeze(2), g[0]) if tokens else (a[0], g[0])
    sizes = [length, *(x.shape[2] for x in first), *(n for x in first for n in x.stride())]
    with torch.cuda.device_of(sums):
        _gram_kernel[records * tiles, layers](
            *(a, g, w, sums, squares, *sizes, tokens), **_options(*first[tokens:])
        )
    w = torch.ones_like(squares) if w is None else w
    scale = (w * squares.sqrt()).sum(2).square()
    return torch.stack([*sums.sum(2).unbind(2), scale, w.square().sum(2), squares.sum(2)], 1)


@_gram_sums.register_fake
def _(a: Sequence[Tensor], g: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    return g[0].new_empty(len(g), 5, g[0].shape[0], dtype=torch.float32)


def _of_one_layout(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return tensors of one shape with the same strides."""
    same = len({x.stride() for x in tensors}) == 1
    return tuple(tensors) if same else tuple(x.contiguous() for x in tensors)


def check(device: torch.device) -> None:
    """Raise ArithmeticError if the kernel, as layers call it, gives other numbers than float64."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=generator, device="cpu").to(device, dtype)

    pairs: list[tuple[Tensor, Tensor]] = []
    for length, p in ((70, 128), (20, 91)):
        a, g = (drawn(3, length, width, dtype=torch.bfloat16) for width in (128, p))
        z, weights, ids = drawn(3, 41, 128), drawn(3, length).abs(), (5 * drawn(3, 41).abs()).long()
        A, G, Z = (x.double() @ x.double().mT for x in (a, g, z))
        bound = G.abs() * weights[:, :, None] * weights[:, None]
        same = ids[:, :, None] == ids[:, None]
        pairs += zip(gram_sums(a, g, weights)[:2], (A * G, bound), strict=True)
        layers = [torch.stack([x, x.flip(0)]).unbind() for x in (a, g, weights)]
        values = _gram_sums(*layers).select(1, 0)
        pairs += [(values[0], A * G), (values[1].flip(0), A * G)]
        pairs.append((gram_sums(ids, z)[0], Z * same))
    for found, terms in pairs:
        expected = terms.sum((1, 2))
        if not torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-2):
            raise ArithmeticError(f"got {found.tolist()}, expected {expected.tolist()}")


def _options(*factors: Tensor) -> dict[str, Any]:
    """Return how a kernel is compiled for factors ``(B, T, d)``."""
    # Numbers at odd addresses are loaded one by one, and need a register each for theirs.
    round = all(x.dtype == torch.bfloat16 and x.stride(1) % 8 == 0 for x in factors)
    return {
        "COLUMNS": 64 if round else 32,  # multiplied at once
        "WIDEN": factors[0].device.type == "cpu",  # interpreted, it multiplies no bfloat16
        "num_warps": 4,
    }


@triton.jit(do_not_specialize=["length"])
def _gram_kernel(
    a, g, weights, sums, squares, length, d, p, a0, a1, a2, g0, g1, g2,
    TOKENS: tl.constexpr, WIDEN: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One tile of one record's Gram matrices; below the diagonal they are what they are above.

    ``a`` and ``g`` are tuples, with one address for each layer: arguments of the launch are part of
    a captured graph, and a table in memory would have to be written before.
    """
    layer = tl.program_id(1)
    a, g = _chosen(a, layer), _chosen(g, layer)
    blocks = tl.cdiv(length, _SIDE)
    records = tl.num_programs(0) // (blocks * blocks)
    sums += layer.to(tl.int64) * tl.num_programs(0) * 2
    squares += layer.to(tl.int64) * records * length
    record = (tl.program_id(0) // (blocks * blocks)).to(tl.int64)
    i, j = tl.program_id(0) // blocks % blocks, tl.program_id(0) % blocks
    s = i * _SIDE + tl.arange(0, _SIDE)
    t = j * _SIDE + tl.arange(0, _SIDE)
    a += record * a0
    g += record * g0
    if TOKENS:
        of_s = tl.load(a + s.to(tl.int64) * a1, mask=s < length, other=0)
        of_t = tl.load(a + t.to(tl.int64) * a1, mask=t < length, other=0)
        gram_a = (of_s[:, None] == of_t[None, :]).to(tl.float32)
    else:
        width = tl.where(i <= j, d, 0)
        gram_a = _products(a, a, s, t, length, length, width, a1, a2, a1, a2, WIDEN, COLUMNS)
    width = tl.where(i <= j, p, 0)
    gram_g = _products(g, g, s, t, length, length, width, g1, g2, g1, g2, WIDEN, COLUMNS)
    # Beyond the last position a factor is zero; infinity times zero must not count.
    inside = (s < length)[:, None] & (t < length)[None, :] & (i <= j)
    times = tl.where(i == j, 1.0, 2.0)
    here = sums + tl.program_id(0).to(tl.int64) * 2
    tl.store(here, tl.sum(tl.where(inside, gram_a * gram_g, 0.0)) * times)
    bound = 0.0
    if weights is not None:
        weights += layer.to(tl.int64) * records * length
        of_s = tl.load(weights + record * length + s, mask=s < length, other=0.0)
        of_t = tl.load(weights + record * length + t, mask=t < length, other=0.0)
        terms = tl.abs(gram_g) * of_s[:, None] * of_t[None, :]
        bound = tl.sum(tl.where(inside, terms, 0.0)) * times
    tl.store(here + 1, bound)
    diagonal = tl.sum(tl.where(s[:, None] == t[None, :], gram_g, 0.0), 1)
    tl.store(squares + record * length + s, diagonal, mask=(s < length) & (i == j))


@triton.jit
def _chosen(tensors, layer):
    """Return the address of one tensor of a tuple."""
    chosen = tensors[0]
    for k in tl.static_range(1, len(tensors)):
        chosen = tl.where(layer == k, tensors[k], chosen)
    return chosen


@triton.jit
def _products(
    x, y, s, t, lengths, lengtht, width, x1, x2, y1, y2,
    WIDEN: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """``<x_s, y_t>`` of a tile, in float32: ``(64, 64)``."""
    k = tl.arange(0, COLUMNS)
    at_x = x + s.to(tl.int64)[:, None] * x1 + k.to(tl.int64)[None, :] * x2
    at_y = y + t.to(tl.int64)[:, None] * y1 + k.to(tl.int64)[None, :] * y2
    of_x, of_y = (s < lengths)[:, None], (t < lengtht)[:, None]
    total = tl.zeros((_SIDE, _SIDE), tl.float32)
    whole = width // COLUMNS * COLUMNS
    # A mask over columns would forbid to load several numbers at once.
    for _ in range(0, whole, COLUMNS):
        total = _added(total, at_x, at_y, of_x, of_y, WIDEN)
        at_x += COLUMNS * x2
        at_y += COLUMNS * y2
    if whole < width:
        left = (whole + k < width)[None, :]
        total = _added(total, at_x, at_y, of_x & left, of_y & left, WIDEN)
    return total


@triton.jit
def _added(total, at_x, at_y, of_x, of_y, WIDEN: tl.constexpr):
    x = tl.load(at_x, mask=of_x, other=0.0)
    y = tl.load(at_y, mask=of_y, other=0.0)
    if WIDEN or x.dtype != y.dtype:
        x, y = x.to(tl.float32), y.to(tl.float32)
    return tl.dot(x, tl.trans(y), total, input_precision="ieee")
