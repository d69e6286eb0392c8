"""When a recorded run is one that a table asks for.

A run's own hash covers every setting that changes what is computed, so that the same command
continues it. Runs whose scores stand for the same cell may be repetitions: with another seed, on
other hardware, or with data and model from another place.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from dpft.config.schema import Effect, experiment
from dpft.runs.identity import config_hash

# The weights that a metric of the task is computed with; they belong to the score.
_WEIGHTS = {"BERTScore": "bertscore", "BLEURT": "bleurt"}
_PUBLISHED = ("auto", "files", "hub")


def match_key(config: Mapping[str, Any]) -> str:
    """Return a hash that is equal for configs whose scores stand for the same cells.

    It is of the settings with `Effect.IDENTITY` of a record's config or of `Run.raw`. Published
    data are the same whether they came from files or the hub.
    """
    kept = experiment(config, Effect.IDENTITY)
    if kept["task"].get("source") in _PUBLISHED:
        kept["task"] = {**kept["task"], "source": "published", "sample_seed": None}
    return config_hash(kept)


def scored_with(metric: str, task: Mapping[str, Any]) -> str | None:
    """Return the weights that a metric of a run is made with, by name; None: it needs none."""
    weights = task.get(_WEIGHTS.get(metric, ""))
    return None if weights is None else PurePosixPath(str(weights)).name
