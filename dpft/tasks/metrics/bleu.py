"""Corpus BLEU as sacrebleu computes it by default, on raw text."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

SIGNATURE = f"bleu:case:mixed|tok:13a|smooth:exp|sacrebleu:{version('sacrebleu')}"
"""What decides the number, for a run record."""


def score(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """BLEU-4 over all texts together, with sacrebleu's own tokenisation, and case as it is.

    Args:
        predictions: raw texts, may be "".
        references: raw texts, one or more for each prediction, as many as there are.

    Returns:
        A number in [0, 100].

    Raises:
        ValueError: if there are no predictions, or not as many as there are lists of references.
    """
    if not predictions or len(predictions) != len(references):
        raise ValueError(
            f"got {len(predictions)} predictions and {len(references)} lists of references, "
            "expected one or more, and as many of one as of the other"
        )
    from sacrebleu import corpus_bleu

    width = max(map(len, references))
    columns = [[row[k] if k < len(row) else None for row in references] for k in range(width)]
    return float(corpus_bleu(list(predictions), columns).score)  # type: ignore[arg-type]
