"""The number by which runs of a sweep are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpft.errors import ConfigError, suggestion

# In the names of scores that are better the lower they are.
_LOWER = ("perplexity", "exposure")


def lower_is_better(metric: str) -> bool:
    """Whether of two runs the one with the lower score is the better one."""
    return any(word in metric for word in _LOWER)


def score(record: Mapping[str, Any], metric: str | None) -> tuple[str, float | None]:
    """Name and value of a run's score on the split that it was decoded on.

    Args:
        record: see `dpft.runs.RunRecord`.
        metric: one of the split's; None: the first.

    Returns:
        The value is None where the metric has no finite one.

    Raises:
        ConfigError: if the run has no such score.
    """
    split = record["config"]["decode"]["split"]
    scores: dict[str, float | None] = record.get("scores", {}).get(split, {}).get("metrics", {})
    if not scores:
        raise ConfigError(f"the run has no scores of the {split} split; type dpft score RUN")
    name = next(iter(scores)) if metric is None else metric
    if name not in scores:
        raise ConfigError(
            f"sweep.metric is {name!r}{suggestion(name, scores)}; expected one of "
            f"{', '.join(scores)}"
        )
    return name, scores[name]
