"""One backward: sums from what it brought, at its end or inside it."""

from collections import Counter

import torch
from torch import Tensor

from dpft.privacy.clipping.plans.batch import Book, ClippingBatch, Entry, cheapest_forms, formed
from dpft.privacy.clipping.rules import Use
from dpft.privacy.clipping.rules.uses import MAX_TRANSIENT_NUMEL
from dpft.privacy.precision import full_precision


def materialised(batch: ClippingBatch) -> None:
    """Form ``sum_i g_i min(1, C / |g_i|)`` with every ``g_i`` formed (Abadi et al. 2016).

    What DP-SGD says, done literally, and what Opacus does: memory grows with batch times model
    size. It serves comparison and debugging.
    """
    book: Book = {}

    def complete(name: str, uses: list[Use]) -> None:
        uses = [formed(uses)]
        book[name] = Entry(batch.squared_norm(name, uses), uses)

    batch.backward(complete)
    _add_all(batch, book)


def bookkeeping(batch: ClippingBatch) -> None:
    """Form ``G = a^T diag(C_1, ..., C_B) g`` for each layer (Bu et al. 2023, Algorithm 1).

    Output gradients are booked until all norms are known. With several groups nothing is freed
    before the end either, as line 11 would: `groupwise` frees.
    """
    book: Book = {}

    def complete(name: str, uses: list[Use]) -> None:
        # One record's gradient, once formed, becomes .grad where it lies. Where sums are scattered
        # it does not, and whole ones of all layers would be held at once.
        whole = batch.parameters[name].numel()
        held = sum(x.numel() for u in uses for x in vars(u).values() if isinstance(x, Tensor))
        if not (batch.sharded and batch.size == 1 and held < whole):
            uses = cheapest_forms(uses, batch.size, transient=False)
        book[name] = Entry(batch.squared_norm(name, uses), uses)  # line 5

    batch.backward(complete)  # lines 3 and 4
    _add_all(batch, book)


def _add_all(batch: ClippingBatch, book: Book) -> None:
    with torch.no_grad(), full_precision():
        for k, factors in enumerate(batch.all_clip_factors(book)):  # lines 7 and 8
            batch.add_sums(k, book, factors)  # lines 9 to 11


def groupwise(batch: ClippingBatch) -> None:
    """Form ``sum_i g_k^(i) min(1, C_k / |g_k^(i)|)`` for ``k = K`` to ``1`` inside the backward.

    A group is clipped as soon as the backward has passed it, and its inputs and output gradients
    are freed before the backward goes on (He et al. 2022, section 3.1 and Algorithm 1). This is
    Algorithm 1 of Bu et al. 2023 as well, for any partition into groups.
    """
    book: Book = {}
    names = {name for call in batch.structure.reached for name in call.site.names.values()}
    incomplete = Counter(batch.group_of[name] for name in names)
    small = [
        batch.size * sum(batch.parameters[name].numel() for name in group.parameters)
        <= MAX_TRANSIENT_NUMEL
        for group in batch.groups
    ]

    def complete(name: str, uses: list[Use]) -> None:
        k = batch.group_of[name]
        uses = cheapest_forms(uses, batch.size, transient=small[k])
        book[name] = Entry(batch.squared_norm(name, uses), uses)  # line 8
        incomplete[k] -= 1
        if not incomplete[k]:
            batch.add_sums(k, book, batch.clip_factors(k, book))  # line 9, fused

    batch.backward(complete)  # line 11
