"""Ghost clipping: norms without per-example gradients (Li et al. 2022, section 4).

As `lee_kifer`, but the gradient of a linear layer is never formed: with input ``a_i`` and output
gradient ``g_i`` of record ``i`` it is ``g_i^T a_i`` (equation 1), and its squared norm is
``vec(a_i a_i^T) . vec(g_i g_i^T)`` (equation 2), from two matrices of positions by positions.
"""

from __future__ import annotations

from dpft.privacy.clipping.plans.batch import Book, ClippingBatch, Entry, recomputed
from dpft.privacy.clipping.plans.reweighting import TwoBackwards
from dpft.privacy.clipping.rules import Use


def ghost(batch: ClippingBatch) -> None:
    """Form the gradient of ``sum_i c_i L_i`` with ``c_i = min(1, C / |grad L_i|)``."""
    book: Book = {}

    def complete(name: str, uses: list[Use]) -> None:
        passes.saw(uses)
        norm = batch.squared_norm(name, uses)  # equation 2: `rules.uses.MatrixUse`
        # Without a look, `clip_factors` allows for the rounding of all layers at once.
        if batch.careful and not norm.exact and not bool(norm.sound().all()):
            norm = recomputed(norm, uses)
        book[name] = Entry(norm, [])

    passes = TwoBackwards(batch)
    passes.first(complete)  # |grad L_i|, layer by layer
    passes.second(batch.clip_factors(0, book))  # of sum_i c_i L_i
