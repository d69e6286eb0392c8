"""ROUGE-1, ROUGE-2 and ROUGE-L as the library rouge-score computes them, on raw text."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from rouge_score.rouge_scorer import RougeScorer

from dpft.tasks.metrics.inputs import check_counts

SIGNATURE = f"rouge:F1|stemmer:porter|mean over examples|rouge_score:{version('rouge_score')}"
"""What decides the numbers, for a run record."""

MEASURES = {"rouge1": "ROUGE_1", "rouge2": "ROUGE_2", "rougeL": "ROUGE_L"}


def score(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Mean F1 of the three measures, with the Porter stemmer, the best of several references.

    Nothing is done to the texts before: rouge-score lowercases, and words are runs of ASCII letters
    and digits. This is not the pipeline of DART, which tokenises first and jackknifes.

    Args:
        predictions: raw texts, may be "".
        references: raw texts, one or more for each prediction.

    Returns:
        "ROUGE_1", "ROUGE_2" and "ROUGE_L" in [0, 100].

    Raises:
        ValueError: if there are no predictions, or not as many as there are lists of references.
    """
    check_counts(predictions, references)
    scorer = RougeScorer(list(MEASURES), use_stemmer=True)
    sums = dict.fromkeys(MEASURES, 0.0)
    for prediction, texts in zip(predictions, references, strict=True):
        for name, measure in scorer.score_multi(texts, prediction).items():
            sums[name] += measure.fmeasure
    return {MEASURES[name]: 100 * total / len(predictions) for name, total in sums.items()}
