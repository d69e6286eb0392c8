"""Book-keeping: one backward, sums at its end (Bu et al. 2023, Algorithm 1 with one group).

Output gradients are booked until all norms are known. With several groups it is Algorithm 1 too,
but for line 11: nothing is freed before the end. `groupwise` frees.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.plans.batch import Book, ClippingBatch, Entry
from dpft.privacy.clipping.plans.norms import formed
from dpft.privacy.clipping.rules import Use
from dpft.privacy.precision import full_precision


def bookkeeping(batch: ClippingBatch) -> None:
    """``G = a^T diag(C_1, ..., C_B) g`` for each layer (equation 3)."""
    book: Book = {}

    def complete(name: str, uses: list[Use]) -> None:
        # One record's gradient, once formed, becomes .grad where it lies. Where sums are scattered
        # it does not, and whole ones of all layers would be held beside each other.
        if not (batch.sharded and batch.size == 1 and _smaller(uses, batch.parameters[name])):
            uses = cheapest_forms(uses, batch.size, transient=False)
        book[name] = Entry(batch.squared_norm(name, uses), uses)  # line 5

    batch.backward(complete)  # lines 3 and 4
    with torch.no_grad(), full_precision():
        for k, factors in enumerate(batch.all_clip_factors(book)):  # lines 7 and 8
            batch.add_sums(k, book, factors)  # lines 9 to 11


def _smaller(uses: Sequence[Use], parameter: nn.Parameter) -> bool:
    """Whether what the uses hold is less than the gradient of one record."""
    held = [x for use in uses for x in vars(use).values() if isinstance(x, Tensor)]
    return sum(x.numel() for x in held) < parameter.numel()


def cheapest_forms(uses: list[Use], batch: int, *, transient: bool) -> list[Use]:
    """``(a, g)`` as they are, or the gradients where holding those is cheaper.

    Args:
        uses: of one parameter.
        batch: ``B``.
        transient: whether the sum follows at once, so that what is formed is freed again.
    """
    if len(uses) == 1:
        return [uses[0].cheapest_form(transient)]
    return [formed(uses)] if batch == 1 else uses
