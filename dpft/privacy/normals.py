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
import warnings
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from dpft.privacy import keystream

BLOCK = 1024
"""Numbers that are drawn together: number ``i`` is made of words of block ``i // BLOCK``, which are
first all radii, then all angles. Another size would be other noise."""

# Numbers at a time, on a CPU per thread: large enough to be fast, small enough for its cache.
_TILE_CPU, _TILE_GPU = 1 << 16, 1 << 22
_THREADS = 16  # at most; OpenSSL's part is done by one

_PAIRS = BLOCK // 2
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


def tiles(
    asked: Sequence[tuple[bytes, int, int]], device: torch.device | str = "cpu"
) -> Iterator[list[tuple[int, int, Tensor]]]:
    """Yield slices of the numbers of keys, a cache's worth at a time: short ones together.

    Args:
        asked: of each slice a key, 32 bytes, derived for these numbers alone; the place of its
            first number, and the place behind its last.
        device: for which they are wanted, see `drawing_device`.

    Yields:
        For each tile the slice's place in ``asked``, where the tile begins, and its numbers
        ``(n,)`` in float64.
    """
    device = drawing_device(torch.device(device))
    threads = min(torch.get_num_threads(), _THREADS)
    tile = _TILE_CPU * threads if device.type == "cpu" else _TILE_GPU
    pieces, places, size = list[tuple[bytes, int, int]](), list[tuple[int, int]](), 0
    for place, (key, start, stop) in enumerate(asked):
        while start < stop:
            end = min(stop, (start // tile + 1) * tile)
            count = end - start + BLOCK  # at most: blocks are drawn whole
            if pieces and size + count > tile:
                yield [(*at, z) for at, z in zip(places, _draw(pieces, device), strict=True)]
                pieces, places, size = [], [], 0
            pieces.append((key, start, end))
            places.append((place, start))
            start, size = end, size + count
    if pieces:
        yield [(*at, z) for at, z in zip(places, _draw(pieces, device), strict=True)]


def normals(key: bytes, start: int, stop: int) -> Tensor:
    """Return numbers ``start`` to ``stop`` of a key, float64, on the CPU.

    Guarantee: independent standard normal numbers, as long as ChaCha20's keystream cannot be
    distinguished from random bits. Each is a function of the key and its position.
    """
    drawn = [numbers for some in tiles([(key, start, stop)]) for _, _, numbers in some]
    return torch.cat(drawn) if drawn else torch.empty(0, dtype=torch.float64)


def _draw(asked: Sequence[tuple[bytes, int, int]], device: torch.device) -> list[Tensor]:
    words = [
        keystream.words(key, start // BLOCK * BLOCK, -(-stop // BLOCK) * BLOCK, device)
        for key, start, stop in asked
    ]
    together = words[0] if len(words) == 1 else torch.cat(words)
    drawn = _box_muller(together.view(-1, 2, _PAIRS)).view(-1)
    blocks = drawn.split([some.shape[0] for some in words])
    return [
        some[start % BLOCK : start % BLOCK + stop - start]
        for some, (_, start, stop) in zip(blocks, asked, strict=True)
    ]


@cache
def drawing_device(device: torch.device) -> torch.device:
    """Return ``device``, or the CPU where it has no float64 operations or rounds otherwise."""
    if device.type not in ("cpu", "cuda"):
        return torch.device("cpu")
    (drawn,) = _draw([(bytes(32), 0, _CHECKED)], device)
    if hashlib.sha256(drawn.cpu().numpy().tobytes()).hexdigest() == _KNOWN:
        return device
    if device.type == "cpu":
        raise RuntimeError(
            "this machine's float64 operations give other noise than the known numbers of "
            "dpft.privacy.normals; expected IEEE 754 rounding, to nearest. Use another machine, or "
            "another build of torch"
        )
    warnings.warn(
        f"{device} rounds float64 operations in other ways than IEEE 754, so noise is drawn on the "
        "CPU: slower, with the same numbers",
        stacklevel=2,
    )
    return torch.device("cpu")


def _box_muller(words: Tensor) -> Tensor:
    """Turn two words into two numbers, ``sqrt(-2 log u) (cos, sin)(theta)``.

    The first word, made odd, is a signed number ``x`` whose magnitude is ``u = |x| / 2^63``. Its
    sign, the bit that makes it odd, and the second word ``y`` choose ``theta``: ``y`` an angle
    within ``pi/4`` of an axis, the bit which axis, the sign its direction.

    Words ``(..., 2, n)`` are int64, numbers ``(..., 2, n)`` float64.
    """
    first, second = words[..., 0, :], words[..., 1, :]
    x = (first | 1).double()
    radius = torch.copysign(_sqrt(_minus_two_log(x)), x)
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


def _sqrt(x: Tensor) -> Tensor:
    """Return the correctly rounded root; on a CPU torch's is MKL's, at times a bit off."""
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else x.sqrt()


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Apply Horner's rule, rounded after each multiplication and each addition."""
    value = x * coefficients[0]
    for coefficient in coefficients[1:-1]:
        value.add_(coefficient).mul_(x)
    return value.add_(coefficients[-1])
