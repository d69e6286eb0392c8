"""Group-wise clipping inside the backward (He et al. 2022, section 3.1 and Algorithm 1).

A group is clipped as soon as the backward has passed it: norms, factors and sums are fused, and its
inputs and output gradients are freed before the backward goes on. This is Algorithm 1 of Bu et al.
2023 as well, for any partition into groups.
"""

from __future__ import annotations

from collections import Counter

from dpft.privacy.clipping.plans.batch import Book, ClippingBatch, Entry, cheapest_forms
from dpft.privacy.clipping.rules import Use
from dpft.privacy.clipping.rules.uses import MAX_TRANSIENT_NUMEL


def groupwise(batch: ClippingBatch) -> None:
    """Form ``sum_i g_k^(i) min(1, C_k / |g_k^(i)|)`` for ``k = K`` to ``1`` (lines 7 to 12)."""
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
