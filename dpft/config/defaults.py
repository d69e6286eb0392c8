"""Default settings of runs on one's own data, by model, method and task.

No learning rate serves all: one that trains every weight of GPT-2 hardly moves a new head. The
papers' tasks, and runs with a typed preset, keep the settings of ``conf/``. ``defaults.yaml`` has
the rows.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dpft.config import folder
from dpft.config.errors import ConfigError
from dpft.config.overrides import setting_of
from dpft.config.schema import SHORTHANDS

# A typed one of these replaces the others.
_SIZES = ("optim.batch_size", "optim.sampling_rate", "optim.rate_like")


@dataclass(frozen=True)
class Row:
    """Settings for some models, one method and some tasks, by the names that are typed."""

    models: Sequence[str]  # by ``model.path``
    adapt: str
    tasks: Sequence[str]
    source: str  # of the values, such as a pilot
    values: Mapping[str, Any] = field(default_factory=dict)
    usual: bool = False  # whether ``adapt`` is the default method of these models and tasks


ROWS = tuple(
    Row(**row) for row in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
)


def with_defaults(config: folder.Config, words: Sequence[str]) -> folder.Config:
    """Return the config with the settings of its row in place of those that were not typed.

    The taken settings are added as ``origin``: ``values`` by name, and the ``source``. A sampling
    rate, typed or taken, replaces a batch size that was not typed.

    Args:
        config: resolved, of dpft's choices and the typed ones; not changed.
        words: the typed overrides.

    Raises:
        ConfigError: a setting was typed by two names with two values.
    """
    typed = set(map(setting_of, words))
    for short, setting in SHORTHANDS.items():
        group, _, leaf = setting.partition(".")
        values, value = config.get(group), config[short]
        if short not in typed or not isinstance(values, dict):
            continue
        if values.get(leaf) != value and value == value:  # nan is refused by its type
            raise ConfigError(
                f"got {short}={value} and {setting}={values.get(leaf)}, two values of one setting; "
                f"expected one: leave {short} or {setting} out"
            )
    config = copy.deepcopy(config)
    if not typed.intersection(folder.PRESETS) and config.get("resume") is None:
        _take_row(config, typed)
    optim = config.get("optim")
    if isinstance(optim, dict) and optim.get("sampling_rate") and "optim.batch_size" not in typed:
        optim["batch_size"] = None
    return config


def _take_row(config: folder.Config, typed: set[str]) -> None:
    """Write the settings of the row that fits, if one does, into the config."""
    chosen = any(key.partition(".")[0] == "adapt" for key in typed)
    try:
        path, task = config["model"]["path"], config["task"]["name"]
        method = config["adapt"]["name"]
    except (KeyError, TypeError):  # `parse` raises the error
        return
    rows = [row for row in ROWS if path in row.models and task in row.tasks]
    fitting = [row for row in rows if row.adapt == method or (row.usual and not chosen)]
    if not fitting:
        return
    row, taken = max(fitting, key=lambda row: row.usual and not chosen), {}
    if method != row.adapt:
        config["adapt"] = copy.deepcopy(folder.settings_of("adapt", row.adapt))
        taken["adapt"] = row.adapt
    if typed.intersection(_SIZES):
        typed = {*typed, *_SIZES}
    optim, clip = config["optim"], config["clip"]
    # Rows are for Adam, and for a fixed threshold of one group; steps override epochs.
    used = set(optim) - ({"epochs"} if optim.get("steps") is not None else set())
    one_group = clip.get("groups") == "flat" and not clip.get("adaptive") and "threshold" in clip
    for key, value in row.values.items():
        group, _, leaf = key.partition(".")
        fits = {"optim": optim.get("name") in ("adam", "adamw") and leaf in used, "clip": one_group}
        if key not in typed and fits.get(group, True):
            config[group][leaf] = taken[key] = value
    if taken:
        config["origin"] = {"values": taken, "source": row.source}


def origin_in_words(origin: Mapping[str, Any]) -> str:
    """Return a line with the settings that were taken, and their source."""
    values = " ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in origin["values"].items()
    )
    return f"default here: {values}; from {origin['source']}"
