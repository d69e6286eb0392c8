"""Accuracy and F1 of class names, as GLUE scores them.

Both equal scikit-learn's ``accuracy_score`` and ``f1_score(average="binary")`` with
``zero_division=0``, which GLUE's own evaluation calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpft.tasks.metrics.inputs import check_counts

SIGNATURE = "accuracy:share of equal names|f1:2TP/(2TP+FP+FN), 0 where undefined"


def accuracy(predictions: Sequence[str], references: Sequence[str]) -> float:
    """The share of predictions that are right, in [0, 1]; papers print it times 100.

    Raises:
        ValueError: if there are none, or not as many references.
    """
    check_counts(predictions, references)
    return sum(p == r for p, r in zip(predictions, references, strict=True)) / len(predictions)


def f1(predictions: Sequence[str], references: Sequence[str], positive: str) -> float:
    """The harmonic mean of precision and recall of the class ``positive``, in [0, 1].

    0 where the class is neither predicted nor true anywhere, and where no prediction of it is
    right.

    Raises:
        ValueError: if there are none, or not as many references.
    """
    check_counts(predictions, references)
    pairs = list(zip(predictions, references, strict=True))
    hits = sum(p == r == positive for p, r in pairs)
    mentions = sum((p == positive) + (r == positive) for p, r in pairs)
    return 2 * hits / mentions if mentions else 0.0
