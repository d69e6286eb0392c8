"""Clipping thresholds: the range they lie in, and the sensitivity that follows from them."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Thresholds lie between these. In float32 the squares of smaller gradients vanish or lose digits,
# so that norms come out too small and more than C passes. Where a device flushes what is below
# 1.2e-38 to zero, the squared norm of d numbers is off by up to d times that: for a billion, by
# 1e-5 of C^2 at 1e-12. The square of a norm from 1.8e19 on overflows, and its record is dropped.
LOWEST, HIGHEST = 1e-12, 1e12


def check_threshold(what: str, threshold: float) -> None:
    """Raise ValueError unless float32 can hold the squares of norms near a threshold."""
    if not LOWEST <= threshold <= HIGHEST:
        raise ValueError(
            f"clipping threshold of {what} is {threshold}; expected {LOWEST:g} to {HIGHEST:g}, "
            "for instance threshold=0.1: in float32 squares of smaller gradients vanish, and of "
            "larger ones overflow"
        )


def sensitivity(thresholds: Sequence[float]) -> float:
    """L2 sensitivity of the sum of clipped gradients under adding or removing one record."""
    return math.sqrt(math.fsum(c * c for c in thresholds))
