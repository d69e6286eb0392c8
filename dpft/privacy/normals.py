"""Standard normal numbers by position: the same bits on every device and instruction set.

Number ``i`` of a key is a function of (key, ``i``), so a rank that holds a slice of a parameter
draws the noise of that slice. Box and Muller's transform makes two numbers of two words of the
keystream. Each arithmetic step is one IEEE operation on float64 (add, subtract, multiply, divide,
square root), a separate kernel that no compiler can contract with the next. Logarithm, sine and
cosine are polynomials of such steps, since the ``log`` of one library is not that of another.
docs/reference/noise.md has the whole construction, and what is proven of it.
"""

import hashlib
import math
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpft.privacy import keys

BLOCK = 1024
"""Numbers that are drawn together: number ``i`` is made of words of block ``i // BLOCK``, which are
first all radii, then all angles. Another size would be other noise."""

# Numbers at a time and per thread: large enough to be fast, small enough for a CPU's cache.
_TILE = 1 << 16
_THREADS = 16  # at most; OpenSSL's part is done by one

MAGNITUDE = (1 << 63) - 1  # every bit of a float64 but its sign
MANTISSA = 52
SQRT_HALF = struct.unpack("<q", struct.pack("<d", math.sqrt(0.5)))[0]  # its bits

MINUS_TWO_LOG_TWO = -1.3862943611198906
ANGLE = math.pi / 4 * 2.0**-63

# Near-minimax polynomials (mpmath.chebyfit), highest power first.
LOG = (  # -4 atanh(s)/s in s^2, for |s| <= (sqrt(2) - 1)/(sqrt(2) + 1); off by 5e-18
    -0.2961942072131055,
    -0.3062505629672838,
    -0.36367263360458657,
    -0.44444394113452096,
    -0.5714285752128336,
    -0.7999999999860468,
    -1.333333333333353,
    -4.0,
)
SIN = (  # sin(t)/t in t^2, for |t| <= pi/4; off by 3e-18
    1.5894736651849094e-10,
    -2.5050716974102745e-08,
    2.755731337640013e-06,
    -0.000198412698286503,
    0.008333333333320363,
    -0.16666666666666616,
    1.0,
)
COS = (  # cos(t) in t^2, for |t| <= pi/4; off by 5e-17
    2.0630454379662294e-09,
    -2.755523388484742e-07,
    2.4801578538562985e-05,
    -0.0013888888869978658,
    0.041666666666472306,
    -0.4999999999999925,
    1.0,
)

_CHECKED = 1 << 16
# SHA-256 of that many numbers of the key of zeros.
_KNOWN = "6e97747d69c95f9870ba9392768798df22cf5143cdd8dd77799ae4c1f6762f0a"


def normals(key: bytes, start: int, stop: int) -> Tensor:
    """Return numbers ``start`` to ``stop`` of a key, float64, on the CPU.

    Guarantee: independent standard normal numbers, as long as ChaCha20's keystream cannot be
    distinguished from random bits. Each is a function of the key and its position.
    """
    drawn = [numbers for _, _, numbers in tiles([(key, start, stop)])]
    return torch.cat(drawn) if drawn else torch.empty(0, dtype=torch.float64)


def tiles(wanted: Sequence[tuple[bytes, int, int]]) -> Iterator[tuple[int, int, Tensor]]:
    """Yield numbers of several keys, ``(key, start, stop)`` each, a cache's worth at a time.

    Yields:
        which of the keys; where the piece begins; its numbers. Short pieces are drawn together.
    """
    _check_machine()
    tile = _TILE * min(torch.get_num_threads(), _THREADS)
    pieces, room = list[_Piece](), tile
    for which, (key, start, stop) in enumerate(wanted):
        while start < stop:
            end = min(stop, (start // tile + 1) * tile)
            if end - start > room:
                yield from _drawn(pieces)
                pieces, room = [], tile
            pieces.append(_Piece(which, key, start, end))
            room -= end - start
            start = end
    yield from _drawn(pieces)


class _Piece(NamedTuple):
    """Numbers ``start`` to ``stop`` of one key."""

    which: int
    key: bytes
    start: int
    stop: int


def _drawn(pieces: Sequence[_Piece]) -> Iterator[tuple[int, int, Tensor]]:
    words = []
    for _, key, start, stop in pieces:  # blocks are drawn whole
        ends = start // BLOCK * BLOCK, -(-stop // BLOCK) * BLOCK
        words.append(torch.from_numpy(keys.words(key, *ends)))
    if pieces:
        joined = torch.cat(words) if len(words) > 1 else words[0]
        drawn = _box_muller(joined.view(-1, 2, BLOCK // 2)).view(-1)
        for piece, some in zip(pieces, drawn.split([len(x) for x in words]), strict=True):
            skipped = piece.start % BLOCK
            yield piece.which, piece.start, some[skipped:][: piece.stop - piece.start]


@cache
def _check_machine() -> None:
    """Raise RuntimeError where this CPU, or this build of torch, draws other numbers."""
    ((_, _, drawn),) = _drawn([_Piece(0, bytes(32), 0, _CHECKED)])
    if hashlib.sha256(drawn.numpy().tobytes()).hexdigest() != _KNOWN:
        raise RuntimeError(
            "this machine's float64 operations give other noise than the known numbers of "
            "dpft.privacy.normals; expected IEEE 754 rounding, to nearest. Use another machine, or "
            "another build of torch"
        )


def _box_muller(words: Tensor) -> Tensor:
    """Turn two words into two numbers, ``sqrt(-2 log u) (cos, sin)(theta)``.

    The first word, made odd, is a signed number ``x`` whose magnitude is ``u = |x| / 2^63``. Its
    sign, the bit that makes it odd, and the second word ``y`` choose ``theta``: ``y`` an angle
    within ``pi/4`` of an axis, the bit which axis, the sign its direction.

    Words ``(..., 2, n)`` are int64, numbers ``(..., 2, n)`` float64.
    """
    first, second = words[..., 0, :], words[..., 1, :]
    x = (first | 1).double()
    # NumPy's root is correctly rounded; torch's is MKL's, at times a bit off.
    radius = torch.copysign(torch.from_numpy(np.sqrt(_minus_two_log(x).numpy())), x)
    t = (second | 1).double().mul_(ANGLE)
    square = t * t
    cos = _polynomial(COS, square)
    sin = _polynomial(SIN, square).mul_(t)
    # Where the bit is set, the bits in which they differ are flipped in both.
    cos_bits, sin_bits = cos.view(torch.int64), sin.view(torch.int64)
    flipped = (cos_bits ^ sin_bits).bitwise_and_((first & 1).neg_())
    cos_bits.bitwise_xor_(flipped)
    sin_bits.bitwise_xor_(flipped)
    out = torch.empty_like(words, dtype=torch.float64)
    torch.mul(radius, cos, out=out[..., 0, :])
    torch.mul(radius, sin, out=out[..., 1, :])
    return out


def _minus_two_log(x: Tensor) -> Tensor:
    """Return ``-2 log(|x| / 2^63)`` of float64, from 1 to ``2^63`` in magnitude.

    With ``u = 2^k m`` and ``sqrt(1/2) <= m < sqrt(2)``: ``log u = k log 2 + 2 atanh((m-1)/(m+1))``.
    """
    bits = x.view(torch.int64).bitwise_and(MAGNITUDE).sub_(63 << MANTISSA)  # of u
    k = (bits - SQRT_HALF).bitwise_right_shift_(MANTISSA)
    m = bits.sub_(k << MANTISSA).view(torch.float64)
    s = (m - 1).div_(m.add_(1))
    return _polynomial(LOG, s * s).mul_(s).add_(k.double().mul_(MINUS_TWO_LOG_TWO))


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Apply Horner's rule, rounded after each multiplication and each addition."""
    value = x * coefficients[0]
    for coefficient in coefficients[1:-1]:
        value.add_(coefficient).mul_(x)
    return value.add_(coefficients[-1])
