"""Partitions of the trainable parameters into clipping groups.

Each group has a threshold ``C_k``, and one record's gradient restricted to group ``k`` is clipped
to norm ``C_k``. One record therefore moves the released sum by at most ``sqrt(sum_k C_k^2)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Parameters that are clipped together, and the norm they are clipped to."""

    name: str
    parameters: tuple[str, ...]
    threshold: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.threshold) and self.threshold > 0):
            raise ValueError(
                f"clipping threshold of group {self.name!r} is {self.threshold}; expected a finite "
                "number > 0, for instance threshold=0.1"
            )


def flat(parameters: Sequence[str], threshold: float) -> tuple[Group, ...]:
    """All parameters in one group (Abadi et al. 2016; "all-layer" clipping in Bu et al. 2023)."""
    return (Group("all", tuple(parameters), threshold),)


def sensitivity(thresholds: Sequence[float]) -> float:
    """L2 sensitivity of the sum of clipped gradients under adding or removing one record."""
    return math.sqrt(math.fsum(c * c for c in thresholds))
