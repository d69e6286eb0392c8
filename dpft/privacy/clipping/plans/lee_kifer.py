"""Reweighting by norms of formed gradients (Lee & Kifer 2021; Li et al. 2022, section 4.1).

The norm of one record's gradient is the norm of its layers' norms: per-example gradients are formed
one layer at a time and forgotten. A second backward, of the losses times their clip factors, gives
the sum.
"""

from __future__ import annotations

import torch

from dpft.privacy.clipping.plans.batch import Book, ClippingBatch, Entry, formed
from dpft.privacy.clipping.plans.reweighting import TwoBackwards
from dpft.privacy.clipping.rules import SquaredNorm, Use, joint_bound, joint_rounding
from dpft.privacy.clipping.rules.base import floor


def lee_kifer(batch: ClippingBatch) -> None:
    """Form the gradient of ``sum_i c_i L_i`` with ``c_i = min(1, C / |grad L_i|)``."""
    book: Book = {}

    def complete(name: str, uses: list[Use]) -> None:
        # The uses go; autograd will form the sum, in another order, where other digits cancel.
        passes.saw(uses)
        gradient = formed(uses)
        value = batch.squared_norm(name, [gradient]).value
        value = torch.maximum(value, floor(joint_bound(uses)))
        book[name] = Entry(SquaredNorm(value, value, joint_rounding(uses)), [])

    passes = TwoBackwards(batch)
    passes.first(complete)  # |grad L_i|, layer by layer
    passes.second(batch.clip_factors(0, book))  # of sum_i c_i L_i
