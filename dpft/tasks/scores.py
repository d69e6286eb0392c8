"""The scores of a run, and the one by which runs of a sweep are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dpft.config import imported
from dpft.config.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from dpft.tasks.base import Task
    from dpft.tasks.objectives.base import Prediction

# Metrics of dpft that are better the lower they are; all others are better the higher they are.
_LOWER = frozenset(
    {
        *("loss", "perplexity", "token_perplexity"),
        *("exposure", "exposure max", "exposure by rank"),  # of secrets, which should stay secret
    }
)


class Metric(Protocol):
    """A metric of another package, which ``task.metrics`` names.

    Its attribute ``lower``, if it has one, names the scores that are better the lower they are.
    """

    signature: str  # names and versions of what computes it

    def score(self, predictions: Sequence[Prediction]) -> Mapping[str, float | None]:
        """Return scores by name."""
        ...


def all_scores(
    task: Task, predictions: Sequence[Prediction]
) -> tuple[dict[str, float | None], str]:
    """Return scores of the task and of the further metrics in its settings, and their signature."""
    scores, signatures = dict(task.score(predictions)), [task.signature()]
    for name in task.metrics:
        metric: Metric = imported.load("task.metrics", name)
        further = metric.score(predictions)
        if twice := scores.keys() & further.keys():
            raise ConfigError(
                f"metric {name} has a score {min(twice)}, and so has task {task.name}; expected "
                "other names"
            )
        scores |= further
        signatures.append(metric.signature)
    return scores, "; ".join(signatures)


def lower_is_better(metric: str, scored: Mapping[str, Any] | None = None) -> bool:
    """Return whether of two runs the one with the lower score is the better one.

    ``scored``, the record's section of the split, knows it of metrics of other packages.
    """
    return metric in _LOWER or metric in ((scored or {}).get("lower") or ())


def lower_ones(task: Task) -> list[str]:
    """Return the scores by metrics of other packages that are better the lower they are."""
    further = (imported.load("task.metrics", name) for name in task.metrics)
    return sorted({one for metric in further for one in getattr(metric, "lower", ())})


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
    from dpft.tasks.objectives.base import Prediction

    firsts = {instance.subset: instance for instance in reversed(task.instances(split))}
    right = [
        Prediction("", one.references[0], one.references, subset, nll=1.0, tokens=1)
        for subset, one in firsts.items()
    ]
    scores, signature = all_scores(task, right)
    if metric not in scores:
        raise ConfigError(
            f"{split} of task {task.name} has no score {metric!r}{suggestion(metric, scores)}; "
            f"expected one of {', '.join(scores)}"
        )
    if scores[metric] is None:
        raise ConfigError(f"{metric} cannot be computed here ({signature})")
