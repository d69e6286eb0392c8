"""Book-keeping: one backward, sums at its end (Bu et al. 2023, Algorithm 1 with one group).

Output gradients are booked until all norms are known. With several groups it is Algorithm 1 too,
but for line 11: nothing is freed before the end. `groupwise` frees.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpft.privacy.clipping.plans.batch import Book, ClippingBatch, Entry, cheapest_forms
from dpft.privacy.clipping.rules import Use
from dpft.privacy.precision import full_precision


def bookkeeping(batch: ClippingBatch) -> None:
    """Form ``G = a^T diag(C_1, ..., C_B) g`` for each layer (equation 3)."""
    book: Book = {}

    def complete(name: str, uses: list[Use]) -> None:
        # One record's gradient, once formed, becomes .grad where it lies. Where sums are scattered
        # it does not, and whole ones of all layers would be held at once.
        whole = batch.parameters[name].numel()
        if not (batch.sharded and batch.size == 1 and _held(uses) < whole):
            uses = cheapest_forms(uses, batch.size, transient=False)
        book[name] = Entry(batch.squared_norm(name, uses), uses)  # line 5

    batch.backward(complete)  # lines 3 and 4
    with torch.no_grad(), full_precision():
        for k, factors in enumerate(batch.all_clip_factors(book)):  # lines 7 and 8
            batch.add_sums(k, book, factors)  # lines 9 to 11


def _held(uses: list[Use]) -> int:
    """Count the numbers that uses hold."""
    return sum(x.numel() for use in uses for x in vars(use).values() if isinstance(x, Tensor))
