"""What scores are read beside: what an answer that never changes would score.

A model that learned nothing answers every question alike. Of an accuracy one cannot see that: on
data where six of ten records are of one class, 0.6 is what a constant scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

# A table of more classes is nothing to read, and too long for a record.
MOST_CLASSES = 20


def majority(references: Sequence[str]) -> float:
    """The accuracy of always answering the most frequent class, in [0, 1].

    Args:
        references: at least one.
    """
    return max(Counter(references).values()) / len(references)


def confused(
    predictions: Sequence[str], references: Sequence[str], classes: Sequence[str]
) -> dict[str, dict[str, dict[str, int]]]:
    """How often each true class was answered with each class; what never happened is left out.

    Returns:
        ``confusion``: by true class, then by answer; nothing for more classes than `MOST_CLASSES`.
    """
    if len(classes) > MOST_CLASSES:
        return {}
    counts = Counter(zip(references, predictions, strict=True))
    table = {
        true: {answer: counts[true, answer] for answer in classes if counts[true, answer]}
        for true in classes
        if true in references
    }
    return {"confusion": table}


def is_constant(scored: Mapping[str, Any], metric: str) -> bool:
    """Whether an answer that never changes would score as much; False where it is not known.

    Args:
        scored: see `cautions`.
        metric: of ``scored["metrics"]``.
    """
    value, constant = scored["metrics"].get(metric), (scored.get("baselines") or {}).get(metric)
    return value is not None and constant is not None and value <= constant


def cautions(scored: Mapping[str, Any]) -> list[str]:
    """What a reader of a record's scores of one split must be told, in clauses.

    Args:
        scored: see `dpft.runs.record.ScoreRecord`; one from before there were baselines says
            nothing.
    """
    said, count = [], scored.get("examples", 0)
    # Of one true class, one answer is all there is to learn.
    one_class = len(scored.get("confusion", ())) == 1
    if count > 1 and not one_class and scored.get("distinct") == 1:
        said.append(f"all {count:,} answers are the same{_which(scored)}: nothing was learned")
    for metric, constant in (scored.get("baselines") or {}).items():
        if is_constant(scored, metric):
            said.append(
                f"{metric} {scored['metrics'][metric]:.4f} is no better than always answering the "
                f"most frequent class ({constant:.4f})"
            )
    return said


def cautions_of(record: Mapping[str, Any]) -> list[str]:
    """The `cautions` of all splits of a record, each behind the split's name."""
    scores = record.get("scores") or {}
    return [f"{split}: {one}" for split, scored in scores.items() for one in cautions(scored)]


def _which(scored: Mapping[str, Any]) -> str:
    answered = {a for row in (scored.get("confusion") or {}).values() for a in row}
    return f", {answered.pop()!r}" if len(answered) == 1 else ""
