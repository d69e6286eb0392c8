"""Squared norms of parameters and groups, safe from what cancellation may hide."""

from __future__ import annotations

from collections.abc import Sequence

import torch

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
    value = parts[0].value
    for part in parts[1:]:
        value = value + part.value
    rounding = None
    for part in parts:
        if part.rounding is not None:
            rounding = part.rounding if rounding is None else rounding + part.rounding
    if all(part.exact for part in parts):
        return SquaredNorm(value, value, rounding)
    scale = parts[0].scale
    for part in parts[1:]:
        scale = scale + part.scale
    return SquaredNorm(value, scale, rounding)


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
