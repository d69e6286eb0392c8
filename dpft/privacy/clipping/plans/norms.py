"""Squared norms of parameters and groups, safe from what cancellation may hide."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpft.privacy.clipping.rules import (
    DirectUse,
    SquaredNorm,
    Use,
    exact_squared_norm,
    joint_per_example,
)
from dpft.privacy.clipping.rules.base import floor


def formed(uses: Sequence[Use]) -> Use:
    """The per-example gradients of one parameter, from all its uses."""
    if len(uses) == 1 and isinstance(uses[0], DirectUse):
        return uses[0]
    return DirectUse(joint_per_example(uses), owned=True)


def total(parts: Sequence[SquaredNorm]) -> SquaredNorm:
    """The joint squared norm of several parameters."""
    value = _sum([part.value for part in parts])
    roundings = [part.rounding for part in parts if part.rounding is not None]
    rounding = _sum(roundings) if roundings else None
    if all(part.exact for part in parts):
        return SquaredNorm(value, value, rounding)
    return SquaredNorm(value, _sum([part.scale for part in parts]), rounding)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    """Of one addend or many, in two operations: each costs a GPU a start."""
    return torch.stack(list(parts)).sum(0) if len(parts) > 1 else parts[0]


def recomputed(norm: SquaredNorm, uses: Sequence[Use]) -> SquaredNorm:
    """Replace what cancellation may have understated, one record at a time."""
    value = norm.value.clone()
    # What is left after cancellation is no smaller than what rounding will make of it in the sum.
    least = floor(norm.scale)
    # Zero of zero terms is exact; NaN is not zero.
    for index in (~norm.trusted() & (norm.scale != 0)).nonzero():
        exact = exact_squared_norm([use.rows(index) for use in uses]).value
        value[index] = torch.maximum(exact, least[index])
    return SquaredNorm(value, value, norm.rounding)
