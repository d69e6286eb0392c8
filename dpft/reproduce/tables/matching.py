"""When a recorded run is one that a table asks for.

A run's own hash covers every setting, so that it is continued by exactly the same command. Whether
its score stands for a cell is another question: where the data lay, how many rows fitted into
memory, or which secret the noise was drawn from make no other experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any

from dpft.config.checks import Effect, build, names_with
from dpft.config.clip import Clip
from dpft.config.decode import Decode
from dpft.config.evaluate import Evaluate
from dpft.config.optim import Optim
from dpft.config.privacy import Privacy
from dpft.config.schema import Model, audit_of
from dpft.runs.identity import config_hash

# Without effect on what is computed, or (train_size, beams, eval_split) said elsewhere; weights of
# metrics belong to the scores, see `scored_with`.
_WEIGHTS = {"BERTScore": "bertscore", "BLEURT": "bleurt"}
_TASK = ("data_dir", "train_size", "beams", "eval_split", *_WEIGHTS.values())
_PUBLISHED = ("auto", "files", "hub")


def match_key(config: Mapping[str, Any]) -> str:
    """A hash that is equal for configs whose scores stand for the same cells.

    Left out: the seed (a cell averages over seeds), shorthands (``eps``, ``sampling``, whose values
    stand in ``privacy``), where published data lie and whether they came from files or the hub,
    memory (``optim.microbatch_tokens``, and ``decode.batch_size`` unless texts are sampled: texts
    of one batch share a stream of random numbers), which split was decoded (a score
    says its split), the seed of the noise, where the model's files lie (shown as a mark where it
    differs), how clipped sums are formed (all plans form the same ones, and styles with one flat
    group differ in that alone), settings of privacy of a run that has none, an audit without
    canaries, and settings that are null: a record from before a setting existed is one that does
    not use it.

    Args:
        config: of a record, or `dpft.config.schema.Run.raw`.

    Raises:
        ConfigError, KeyError, TypeError: if it is no config that this version can read.
    """
    clip = build(Clip, config["clip"], "clip")
    groups: dict[str, Any] = {
        "clip": _clip(clip),
        "optim": _group(Optim, config, "optim"),
        "decode": _decode(config),
        "model": _group(Model, config, "model"),
        "adapt": dict(config["adapt"]),
        "task": _task(config["task"]),
    }
    if clip.private:
        groups["privacy"] = _group(Privacy, config, "privacy")
        if groups["privacy"]["noise_multiplier"] is not None:
            groups["privacy"]["epsilon"] = None
    if config.get("precision", "float32") != "float32":
        groups["precision"] = config["precision"]
    audit = audit_of(config)
    if audit.active:
        groups["audit"] = asdict(audit)
    evaluate = build(Evaluate, config.get("evaluate") or {}, "evaluate")
    if evaluate.best is not None:
        groups["evaluate"] = {**asdict(evaluate), "public": None}
    return config_hash(_without_nulls(groups))


def _group(cls: type, config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings of a group that make an experiment another one."""
    settings: dict[str, Any] = asdict(build(cls, config[name], name))
    return {k: v for k, v in settings.items() if k not in names_with(cls, Effect.REPETITION)}


def scored_with(metric: str, task: Mapping[str, Any]) -> str | None:
    """The weights that a metric of a run is made with, by name; None where it needs none."""
    weights = task.get(_WEIGHTS.get(metric, ""))
    return None if weights is None else PurePosixPath(str(weights)).name


def _clip(clip: Clip) -> dict[str, Any]:
    settings = asdict(clip)
    if clip.private:
        settings["plan"] = None
        if clip.groups == "flat":
            settings["style"] = None
    return settings


def _decode(config: Mapping[str, Any]) -> dict[str, Any]:
    decode = _group(Decode, config, "decode")
    return decode if decode["sample"] else decode | {"batch_size": None}


def _task(task: Mapping[str, Any]) -> dict[str, Any]:
    settings = {key: value for key, value in task.items() if key not in _TASK}
    if settings.get("source") in _PUBLISHED:
        settings["source"] = "published"
        settings.pop("sample_seed", None)
    return settings


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value
