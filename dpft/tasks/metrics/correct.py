"""Which records were answered rightly: what tells two accuracies on the same records apart.

Two models mostly err on the same records, so that their difference is known far better than either
accuracy. A record of a run keeps one bit for each scored record whose reference is published.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from statistics import fmean

Bits = Sequence[bool]


def packed(right: Bits) -> str:
    """Bits in the order of the records, from the highest bit of each byte on, as base64."""
    size = -(-len(right) // 8)
    digits = "".join("01"[bool(one)] for one in right).ljust(8 * size, "0")
    return base64.b64encode(int(digits or "0", 2).to_bytes(size, "big")).decode()


def unpacked(text: str, count: int) -> tuple[bool, ...]:
    """What was `packed`.

    Raises:
        ValueError: if it is not of so many records.
    """
    data = base64.b64decode(text, validate=True)
    if len(data) != -(-count // 8):
        raise ValueError(f"got {len(data)} bytes of bits; expected those of {count} records")
    return tuple(bool(byte >> bit & 1) for byte in data for bit in range(7, -1, -1))[:count]


def paired_error(first: Mapping[int, Bits], second: Mapping[int, Bits]) -> float:
    """The standard error that the records leave to a difference of mean accuracies, in [0, 1].

    With ``d_i`` the share of seeds at which the first was right on record ``i`` less that of the
    second, it is the deviation of the ``d_i`` over the root of their number. One record more on
    which they differ is counted: few records on which none differs are no proof that none would.

    Args:
        first: bits by seed, of the same records at every seed.
        second: the same.
    """
    ones, others = (map(fmean, zip(*side.values(), strict=True)) for side in (first, second))
    differences = [one - other for one, other in zip(ones, others, strict=True)]
    mean, count = fmean(differences), len(differences)
    return math.sqrt(math.fsum((d - mean) ** 2 for d in differences) + 1) / count
