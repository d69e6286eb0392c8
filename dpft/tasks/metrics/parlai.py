"""F1 of words as ParlAI computes it, the score of the ConvAI2 challenge."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from dpft.tasks.metrics.inputs import check_counts

SIGNATURE = "f1:parlai|case:lower|punctuation:space|articles:space|labels:max"
"""What decides the number, for a run record."""

_PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]")
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def words(text: str) -> list[str]:
    """Lowercase words without punctuation and articles, each of which becomes a space.

    "well-known" is two words, and "I'm" is "i" and "m". The order of the steps matters: an article
    is looked for after punctuation is gone.
    """
    return _ARTICLES.sub(" ", _PUNCTUATION.sub(" ", text.lower())).split()


def f1(prediction: str, labels: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of words, against the label that it is largest for.

    Args:
        prediction: raw text, may be "".
        labels: raw texts, one or more.

    Returns:
        In [0, 1]; 0 where no word is shared, also where both texts have none.
    """
    predicted = Counter(words(prediction))
    return max(_f1(predicted, Counter(words(label))) for label in labels)


def corpus_f1(predictions: Sequence[str], labels: Sequence[Sequence[str]]) -> float:
    """Mean of `f1` over examples, in [0, 1]; papers print it times 100.

    Raises:
        ValueError: if there are no predictions, or not as many as there are lists of labels.
    """
    check_counts(predictions, labels)
    scores = [f1(text, given) for text, given in zip(predictions, labels, strict=True)]
    return sum(scores) / len(scores)


def _f1(predicted: Counter[str], label: Counter[str]) -> float:
    shared = (predicted & label).total()
    if not shared:
        return 0.0
    precision, recall = shared / predicted.total(), shared / label.total()
    return 2 * precision * recall / (precision + recall)
