"""The scores of a run, and the one by which runs of a sweep are compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
