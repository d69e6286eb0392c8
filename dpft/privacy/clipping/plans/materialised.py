"""Per-example gradients of every parameter, held until all norms are known (Abadi et al. 2016).

What DP-SGD says, done literally, and what Opacus does: memory grows with batch times model size. It
serves comparison and debugging.
"""

from __future__ import annotations

import torch

from dpft.privacy.clipping.plans.batch import Book, ClippingBatch, Entry, formed
from dpft.privacy.clipping.rules import Use
from dpft.privacy.precision import full_precision


def materialised(batch: ClippingBatch) -> None:
    """Form ``sum_i g_i min(1, C / |g_i|)`` with every ``g_i`` formed (Algorithm 1)."""
    gradients: Book = {}

    def complete(name: str, uses: list[Use]) -> None:
        uses = [formed(uses)]
        gradients[name] = Entry(batch.squared_norm(name, uses), uses)

    batch.backward(complete)
    with torch.no_grad(), full_precision():
        for k, factors in enumerate(batch.all_clip_factors(gradients)):
            batch.add_sums(k, gradients, factors)
