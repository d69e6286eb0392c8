"""Clipping thresholds: their range, and the sensitivity that follows from them."""

import math
from collections.abc import Sequence

# Thresholds are between these. In float32 the squares of smaller gradients vanish or lose digits,
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


def allocate(
    allocation: str, sigma: float, thresholds: Sequence[float], dimensions: Sequence[int] = ()
) -> tuple[float, ...]:
    """Return the standard deviation of the noise on every coordinate of each group.

    ``std_k = sigma S gamma_k`` with ``S = sqrt(sum_k C_k^2/gamma_k^2)`` (He et al. 2022, Algorithm
    1, line 13, and Appendix E):

    ============ ================ ========================================================
    allocation   gamma_k          what it does
    ============ ================ ========================================================
    global       1                the same noise on every coordinate of the model
    equal_budget C_k              each group spends the same; needs no other group's threshold
    weighted     C_k / sqrt(d_k)  about the same signal to noise on every coordinate
    ============ ================ ========================================================

    ``thresholds`` are ``C_k``, ``dimensions`` ``d_k``, the number of parameters per group, which
    ``weighted`` alone needs.

    Guarantee: ``sum_k (C_k / std_k)^2 = 1/sigma^2``: whatever the allocation, the release is one
    Gaussian mechanism with noise multiplier ``sigma``.
    """
    if not thresholds:
        return ()
    if sigma == 0:
        return (0.0,) * len(thresholds)
    if allocation == "global":
        return (sigma * sensitivity(thresholds),) * len(thresholds)
    if allocation == "weighted":
        gammas = [c / math.sqrt(d) for c, d in zip(thresholds, dimensions, strict=True)]
    else:
        gammas = list(thresholds)
    scaled = [c / gamma for c, gamma in zip(thresholds, gammas, strict=True)]
    spread = math.sqrt(math.fsum(c * c for c in scaled))
    return tuple(sigma * spread * gamma for gamma in gammas)
