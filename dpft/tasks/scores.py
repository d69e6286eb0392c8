"""The scores of a run: how they are compared, cautioned about, and shown.

BLEU and ROUGE-L are shown from 0 to 100, as papers print them; the scorer of E2E gives them from 0
to 1, and records keep what a scorer gave. An accuracy is shown next to that of an answer that never
changes: where six of ten records are of one class, a constant scores 0.6. Two accuracies on the
same records are compared record by record: two models mostly err on the same ones, so that their
difference is known far better than either accuracy.
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dpft.config.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from dpft.tasks.task import Task


# Metrics that are better the lower they are; all others are better the higher they are.
_LOWER = frozenset(
    {
        *("loss", "perplexity", "token_perplexity"),
        *("exposure", "exposure max", "exposure by rank"),  # of secrets, which should stay secret
    }
)


def lower_is_better(metric: str, others: Collection[str] = ()) -> bool:
    """Return whether of two runs the one with the lower score is the better one.

    ``others`` are those metrics of a task of the user's, `Task.lower`.
    """
    return metric in _LOWER or metric in others


def is_share(metric: str) -> bool:
    """Return whether a score, of all records or of a subset, is an accuracy."""
    return metric.partition("_")[0] == "accuracy"


def impossible_share(record: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a record that was edited by hand; None if nothing is."""
    for split, scored in record.get("scores", {}).items():
        for name, value in scored["metrics"].items():
            if is_share(name) and value is not None and not 0 <= value <= 1:
                return f"its {split} {name} is {value}; expected a share from 0 to 1"
        if scored["examples"] < 0:
            return f"its {split} scores are of {scored['examples']} examples; expected 0 or more"
    return None


def score(record: Mapping[str, Any], metric: str | None) -> tuple[str, float | None]:
    """Return name and value of a run's score on the split that it was decoded on."""
    split = record["config"]["decode"]["split"]
    scores: dict[str, float | None] = record.get("scores", {}).get(split, {}).get("metrics", {})
    if not scores:
        raise ConfigError(f"the run has no scores of the {split} split; type dpft score RUN")
    name = next(iter(scores)) if metric is None else metric
    if name not in scores:
        raise ConfigError(
            f"the run has no score {name!r}{suggestion(name, scores)}; expected one of "
            f"{', '.join(scores)}"
        )
    return name, scores[name]


def check_metric(metric: str, task: Task, split: str) -> None:
    """Raise ConfigError for a score that runs of a task will not have, before any of them starts.

    The first question of each subset is answered with its reference and scored.
    """
    from dpft.tasks.objectives.objective import Prediction

    firsts = {instance.subset: instance for instance in reversed(task.instances(split))}
    right = [
        Prediction("", one.references[0], one.references, subset, nll=1.0, tokens=1)
        for subset, one in firsts.items()
    ]
    scores = task.score(right)
    if metric not in scores:
        raise ConfigError(
            f"{split} of task {task.name} has no score {metric!r}{suggestion(metric, scores)}; "
            f"expected one of {', '.join(scores)}"
        )


HUNDRED = ("BLEU", "ROUGE_L")
"""Scores that are shown from 0 to 100."""
MOST_CLASSES = 20
"""A confusion table of more classes is too long for a record."""
FEW = 2
"""The recall of a class with so few records says nothing."""
_E2E = "nist:"  # of the tasks' signatures only E2E's has it

Bits = Sequence[bool]


def shown(metric: str, value: float, signature: Any) -> float:
    """Return a recorded score on the scale that it is shown on, by its scorer's signature."""
    return 100 * value if _is_fraction(metric, signature) else value


def figure(metric: str, value: float | None, signature: Any, none: str = "-") -> str:
    """Return `shown` as text; ``none`` where there is no number."""
    if value is None:
        return none
    digits = 2 if _is_fraction(metric, signature) else 4
    return f"{shown(metric, value, signature):.{digits}f}"


def _is_fraction(metric: str, signature: Any) -> bool:
    # A subclass of a task may write those of further scores behind the task's own.
    return metric in HUNDRED and _E2E in str(signature).partition("; ")[0]


def majority(references: Sequence[str]) -> float:
    """Return the accuracy in [0, 1] of always answering the most frequent class."""
    return max(Counter(references).values()) / len(references)


def confused(
    predictions: Sequence[str], references: Sequence[str], classes: Sequence[str]
) -> dict[str, dict[str, dict[str, int]]]:
    """Count how often each true class was answered with each class.

    Returns:
        ``confusion``: by true class, then by answer, without zeros; nothing for more classes than
        `MOST_CLASSES`.
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


def rare(counts: Mapping[str, int]) -> list[str]:
    """Return a sentence on classes of which too few records are scored, if there are any."""
    few = [f"{name} ({count})" for name, count in counts.items() if count <= FEW]
    named = ", ".join(few[:MOST_CLASSES]) + " and others" * (len(few) > MOST_CLASSES)
    return [f"classes of which at most {FEW} records are scored: {named}"] if few else []


def recalls(scored: Mapping[str, Any]) -> str:
    """Return the recall of each true class, and of how many records, from a ``confusion``."""
    found = []
    for true, answers in (scored.get("confusion") or {}).items():
        count = sum(answers.values())
        found.append(f"{true} {answers.get(true, 0) / count:.2f} of {count:,}")
    return ", ".join(found)


def cautions(scored: Mapping[str, Any]) -> list[str]:
    """Return what a reader of a record's `dpft.runs.record.Score` must know, in clauses."""
    found, count = [], scored.get("examples", 0)
    confusion = scored.get("confusion") or {}
    # Of one true class, one answer is all there is to learn.
    if count > 1 and len(confusion) != 1 and scored.get("distinct") == 1:
        answered = {a for row in confusion.values() for a in row}
        which = f", {answered.pop()!r}" if len(answered) == 1 else ""
        found.append(f"all {count:,} answers are the same{which}: nothing was learned")
    for metric, constant in (scored.get("baselines") or {}).items():
        value = scored["metrics"].get(metric)
        if value is not None and constant is not None and value <= constant:
            found.append(
                f"{metric} {value:.4f} is no better than always answering the most frequent class "
                f"({constant:.4f})"
            )
    return found


def cautions_of(record: Mapping[str, Any]) -> list[str]:
    """Return the `cautions` of all splits of a record, each after the split's name."""
    scores = record.get("scores") or {}
    return [f"{split}: {one}" for split, scored in scores.items() for one in cautions(scored)]


def packed(right: Bits) -> str:
    """Return one bit for each record, from the highest bit of each byte on, as base64."""
    size = -(-len(right) // 8)
    digits = "".join("01"[bool(one)] for one in right).ljust(8 * size, "0")
    return base64.b64encode(int(digits or "0", 2).to_bytes(size, "big")).decode()


def unpacked(text: str, count: int) -> tuple[bool, ...]:
    """Return the bits that were `packed`."""
    data = base64.b64decode(text, validate=True)
    if len(data) != -(-count // 8):
        raise ValueError(f"got {len(data)} bytes of bits; expected those of {count} records")
    return tuple(bool(byte >> bit & 1) for byte in data for bit in range(7, -1, -1))[:count]


def paired_error(first: Mapping[int, Bits], second: Mapping[int, Bits]) -> float:
    """Return the standard error that the records leave to a difference of mean accuracies.

    With ``d_i`` the share of seeds at which the first was right on record ``i`` less that of the
    second, it is the deviation of the ``d_i`` over the root of their number. One record more on
    which they differ is counted: few records on which none differs are no proof that none would.
    """
    ones, others = (map(fmean, zip(*side.values(), strict=True)) for side in (first, second))
    differences = [one - other for one, other in zip(ones, others, strict=True)]
    mean, count = fmean(differences), len(differences)
    return math.sqrt(math.fsum((d - mean) ** 2 for d in differences) + 1) / count
