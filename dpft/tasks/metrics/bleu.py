"""Corpus BLEU as sacrebleu computes it by default, on raw text."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from itertools import zip_longest

import sacrebleu

from dpft.tasks.metrics.inputs import check_counts

SIGNATURE = f"bleu:case:mixed|tok:13a|smooth:exp|sacrebleu:{version('sacrebleu')}"
"""What decides the number, for a run record."""


def score(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False
) -> float:
    """BLEU-4 over all texts together, with sacrebleu's own tokenisation.

    Args:
        predictions: raw texts, may be "".
        references: raw texts, one or more for each prediction, as many as there are.
        lowercase: whether the case of letters counts for nothing.

    Returns:
        A number in [0, 100].

    Raises:
        ValueError: if there are no predictions, or not as many as there are lists of references.
    """
    check_counts(predictions, references)
    streams = list(zip_longest(*references))  # padded with None
    # force: no warning about a text that looks tokenised.
    counted = sacrebleu.corpus_bleu(predictions, streams, lowercase=lowercase, force=True)
    return float(counted.score)
