"""Noise on a GPU in one pass over memory: a Triton kernel of words, normal numbers and sum.

`dpft.privacy.keystream` and `dpft.privacy.normals` say what is computed. This is the same sequence
of integer and IEEE float64 operations, held in registers, so it has the same bits. Torch's
operations, a kernel each, move some 3.5 kB of memory a number; this one moves the sum alone, in and
out.

Triton comes with torch for CUDA. `dpft.privacy.noise` uses the kernel on devices that were seen to
give the known bits, and on no other.
"""

from __future__ import annotations

import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

from dpft.privacy import keystream, normals

DTYPES = (torch.float32, torch.float64)
"""Of sums: those to which a float64 is rounded at once, in Triton as in torch."""

_MAGNITUDE = tl.constexpr(normals.MAGNITUDE)
_MANTISSA = tl.constexpr(normals.MANTISSA)
_BIAS = tl.constexpr(63 << normals.MANTISSA)
_SQRT_HALF = tl.constexpr(normals.SQRT_HALF)
_MINUS_TWO_LOG_TWO = tl.constexpr(normals.MINUS_TWO_LOG_TWO)
_ANGLE = tl.constexpr(normals.ANGLE)
_LOG, _SIN, _COS = (tl.constexpr(c) for c in (normals.LOG, normals.SIN, normals.COS))
_BLOCK = tl.constexpr(normals.BLOCK)
_WORDS = tl.constexpr(keystream.WORDS)
_LANES = tl.constexpr(normals.BLOCK // 2 // keystream.WORDS)
"""ChaCha20 blocks of the radii of a block of numbers, and of its angles."""

_WARPS = 2  # 32 lanes each


def noisy_mean_(sums: Tensor, key: bytes, std: float, scale: float, first: int) -> None:
    """``(sums + std z) scale`` in place, as `dpft.privacy.noise.noisy_means_` says.

    Args:
        sums: ``(n,)``, contiguous, of one of `DTYPES`.
        key: 32 bytes, of the step's noise on the whole parameter.
        std: standard deviation of the noise.
        scale: one divided by the expected batch size.
        first: where the slice begins in the whole.
    """
    if not len(sums):
        return
    last = first + len(sums)
    keystream.check(first, last)
    begin = first // normals.BLOCK
    blocks = -(-last // normals.BLOCK) - begin
    # Triton takes a float for 32 bits; these are the 64.
    bits = struct.unpack("<2q", struct.pack("<2d", std, scale))
    with torch.cuda.device_of(sums):
        _kernel[(blocks,)](
            sums,
            begin,
            first,
            last,
            *struct.unpack("<8i", key),
            *bits,
            num_warps=_WARPS,
            # No multiplication may be contracted with an addition.
            enable_fp_fusion=False,
        )


_SCALARS = ["begin", "first", "last", *(f"k{i}" for i in range(8)), "std", "scale"]


# Values that are not specialised: none is compiled into the kernel.
@triton.jit(do_not_specialize=_SCALARS)
def _kernel(sums, begin, first, last, k0, k1, k2, k3, k4, k5, k6, k7, std, scale):
    """One block of numbers: radii from its first ChaCha20 blocks, angles from the others."""
    std = std.to(tl.int64).to(tl.float64, bitcast=True)
    scale = scale.to(tl.int64).to(tl.float64, bitcast=True)
    block = begin.to(tl.int64) + tl.program_id(0)
    lane = tl.arange(0, _LANES)
    counter = (block * (2 * _LANES) + lane).to(tl.uint32)
    x = _chacha(counter, k0, k1, k2, k3, k4, k5, k6, k7)
    y = _chacha(counter + _LANES, k0, k1, k2, k3, k4, k5, k6, k7)
    at = block * _BLOCK + lane * _WORDS
    for i in tl.static_range(_WORDS):
        one, other = _box_muller(_word(x[2 * i], x[2 * i + 1]), _word(y[2 * i], y[2 * i + 1]))
        _add(sums, at + i, first, last, one, std, scale)
        _add(sums, at + (i + _BLOCK // 2), first, last, other, std, scale)


@triton.jit
def _add(sums, at, first, last, z, std, scale):
    here = sums + (at - first)
    inside = (at >= first) & (at < last)
    sum = tl.load(here, mask=inside, other=0.0)
    tl.store(here, ((z * std + sum.to(tl.float64)) * scale).to(sum.dtype), mask=inside)


@triton.jit
def _chacha(counter, k0, k1, k2, k3, k4, k5, k6, k7):
    """RFC 8439, section 2.3: the 32-bit words of each block, as a tuple of 16."""
    zero = counter & 0
    # Those that are given are the key's bits as signed numbers.
    s0, s1, s2, s3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    s4, s5, s6, s7 = _row(zero, k0), _row(zero, k1), _row(zero, k2), _row(zero, k3)
    s8, s9, s10, s11 = _row(zero, k4), _row(zero, k5), _row(zero, k6), _row(zero, k7)
    a0, a1, a2, a3, b0, b1, b2, b3 = s0, s1, s2, s3, s4, s5, s6, s7
    c0, c1, c2, c3, d0, d1, d2, d3 = s8, s9, s10, s11, counter, zero, zero, zero
    for _ in range(10):
        a0, b0, c0, d0 = _quarter_round(a0, b0, c0, d0)
        a1, b1, c1, d1 = _quarter_round(a1, b1, c1, d1)
        a2, b2, c2, d2 = _quarter_round(a2, b2, c2, d2)
        a3, b3, c3, d3 = _quarter_round(a3, b3, c3, d3)
        a0, b1, c2, d3 = _quarter_round(a0, b1, c2, d3)
        a1, b2, c3, d0 = _quarter_round(a1, b2, c3, d0)
        a2, b3, c0, d1 = _quarter_round(a2, b3, c0, d1)
        a3, b0, c1, d2 = _quarter_round(a3, b0, c1, d2)
    return (
        a0 + s0, a1 + s1, a2 + s2, a3 + s3, b0 + s4, b1 + s5, b2 + s6, b3 + s7,
        c0 + s8, c1 + s9, c2 + s10, c3 + s11, d0 + counter, d1, d2, d3,
    )  # fmt: skip


@triton.jit
def _row(zero, word):
    return zero + word.to(tl.uint32, bitcast=True)


@triton.jit
def _quarter_round(a, b, c, d):
    """RFC 8439, section 2.1."""
    a += b
    d = _rotated(d ^ a, 16)
    c += d
    b = _rotated(b ^ c, 12)
    a += b
    d = _rotated(d ^ a, 8)
    c += d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _rotated(x, BITS: tl.constexpr):
    return (x << BITS) | (x >> (32 - BITS))


@triton.jit
def _word(low, high):
    return (low.to(tl.uint64) | (high.to(tl.uint64) << 32)).to(tl.int64, bitcast=True)


@triton.jit
def _box_muller(first, second):
    """`dpft.privacy.normals`, where the choices are explained."""
    x = (first | 1).to(tl.float64)
    sign = x.to(tl.int64, bitcast=True) & ~_MAGNITUDE
    radius = tl.sqrt(_minus_two_log(x)).to(tl.int64, bitcast=True) | sign
    radius = radius.to(tl.float64, bitcast=True)
    t = (second | 1).to(tl.float64) * _ANGLE
    square = t * t
    cos = _polynomial(_COS, 6, square).to(tl.int64, bitcast=True)
    sin = (_polynomial(_SIN, 6, square) * t).to(tl.int64, bitcast=True)
    flipped = (cos ^ sin) & -(first & 1)
    cos = (cos ^ flipped).to(tl.float64, bitcast=True)
    sin = (sin ^ flipped).to(tl.float64, bitcast=True)
    return radius * cos, radius * sin


@triton.jit
def _minus_two_log(x):
    bits = (x.to(tl.int64, bitcast=True) & _MAGNITUDE) - _BIAS
    k = (bits - _SQRT_HALF) >> _MANTISSA
    m = (bits - (k << _MANTISSA)).to(tl.float64, bitcast=True)
    s = (m - 1.0) / (m + 1.0)
    return _polynomial(_LOG, 7, s * s) * s + k.to(tl.float64) * _MINUS_TWO_LOG_TWO


@triton.jit
def _polynomial(COEFFICIENTS: tl.constexpr, DEGREE: tl.constexpr, x):
    value = x * COEFFICIENTS[0]
    for i in tl.static_range(1, DEGREE):
        value = (value + COEFFICIENTS[i]) * x
    return value + COEFFICIENTS[DEGREE]
