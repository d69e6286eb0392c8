"""Noise on a GPU in one pass over memory: a Triton kernel of words, normal numbers and sum.

One launch is for all parameters: each of its programs looks up in a table which block of which
parameter is its own.

`dpft.privacy.keys.words` and `dpft.privacy.normals` say what is computed. This is the same sequence
of integer and IEEE float64 operations, held in registers, so it has the same bits. It moves the sum
alone, in and out of memory.

Triton comes with torch for CUDA. `dpft.privacy.noise` uses the kernel on devices that were seen to
give the known bits, and on no other.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from dpft.privacy import keys, normals
from dpft.privacy.precision import on_device

if TYPE_CHECKING:
    from dpft.privacy.noise import Slice

_MAGNITUDE = tl.constexpr(normals.MAGNITUDE)
_MANTISSA = tl.constexpr(normals.MANTISSA)
_BIAS = tl.constexpr(63 << normals.MANTISSA)
_SQRT_HALF = tl.constexpr(normals.SQRT_HALF)
_MINUS_TWO_LOG_TWO = tl.constexpr(normals.MINUS_TWO_LOG_TWO)
_ANGLE = tl.constexpr(normals.ANGLE)
_LOG, _SIN, _COS = (tl.constexpr(c) for c in (normals.LOG, normals.SIN, normals.COS))
_BLOCK = tl.constexpr(normals.BLOCK)
_WORDS = tl.constexpr(keys.WORDS)
_LANES = tl.constexpr(normals.BLOCK // 2 // keys.WORDS)
"""ChaCha20 blocks of the radii of a block of numbers, and of its angles."""

_WARPS = 2  # 32 lanes each

# A slice: address, first program, first and last place, standard deviation, key.
_ROW = struct.Struct("<4qd32s")
_COLUMNS = tl.constexpr(_ROW.size // 8)


def noisy_means_(slices: Sequence[Slice], scale: float) -> None:
    """Compute ``(sums + std z) scale`` in place for all slices, by one launch.

    Args:
        slices: as of `dpft.privacy.noise.noisy_means_`; all contiguous and on the same device, all
            in float32 or all in float64, to which a float64 is rounded at once.
        scale: one divided by the expected batch size.
    """
    rows, programs = list[bytes](), 0
    for sums, key, std, first in slices:
        if not (count := sums.numel()):
            continue
        last = first + count
        keys.check_words(first, last)
        rows.append(_ROW.pack(sums.data_ptr(), programs, first, last, std, key))
        programs += (last - 1) // normals.BLOCK - first // normals.BLOCK + 1
    if not rows:
        return
    device, dtype = slices[0].sums.device, slices[0].sums.dtype
    table = torch.frombuffer(bytearray().join(rows), dtype=torch.int64)
    # Triton takes a float for 32 bits; these are the 64.
    (bits,) = struct.unpack("<q", struct.pack("<d", scale))
    with torch.cuda.device_of(slices[0].sums):
        _kernel[(programs,)](
            on_device(table, device),
            len(rows),
            bits,
            DOUBLE=dtype == torch.float64,
            num_warps=_WARPS,
            # No multiplication may be contracted with an addition.
            enable_fp_fusion=False,
        )


# Values that are not specialised: none is compiled into the kernel.
@triton.jit(do_not_specialize=["count", "scale"])
def _kernel(table, count, scale, DOUBLE: tl.constexpr):
    """One block of numbers: radii from its first ChaCha20 blocks, angles from the others."""
    program = tl.program_id(0)
    low = program * 0  # the last row whose first program is not a later one
    high = low + count
    while high - low > 1:
        middle = (low + high) // 2
        started = tl.load(table + middle * _COLUMNS + 1) <= program
        low = tl.where(started, middle, low)
        high = tl.where(started, high, middle)
    row = table + low * _COLUMNS
    sums = tl.load(row).to(tl.pointer_type(tl.float64 if DOUBLE else tl.float32))
    first, last = tl.load(row + 2), tl.load(row + 3)
    std = tl.load(row + 4).to(tl.float64, bitcast=True)
    scale = scale.to(tl.int64).to(tl.float64, bitcast=True)
    k0, k1 = _halves(tl.load(row + 5))
    k2, k3 = _halves(tl.load(row + 6))
    k4, k5 = _halves(tl.load(row + 7))
    k6, k7 = _halves(tl.load(row + 8))
    block = first // _BLOCK + (program - tl.load(row + 1))
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
def _halves(word):
    return word.to(tl.uint32), (word >> 32).to(tl.uint32)


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
    s0, s1, s2, s3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    s4, s5, s6, s7 = zero + k0, zero + k1, zero + k2, zero + k3
    s8, s9, s10, s11 = zero + k4, zero + k5, zero + k6, zero + k7
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
