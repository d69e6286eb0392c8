"""Settings as they are typed, and those that train on synthetic records."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from dpft.config.errors import ConfigError
from dpft.config.folder import defaults, settings_of
from dpft.config.overrides import quoted
from dpft.config.schema import Run

# Of the training records and of whose they are: synthetic ones belong to no user. The column
# of users stays, which decides who is held out of the real ones.
_NOT_REPEATED = (
    *("name", "synthetic", "train_size", "limit_train"),
    *("unit", "records_per_user"),
)
# Where one's own data are, and what of them is held out.
_PLACES = (
    *("source", "data_dir", "train_file", "dev_file", "test_file", "hub", "hub_config"),
    *("train_split", "dev_split", "test_split", "dev_share", "test_share", "split_seed"),
    *("user_column", "sample_seed", "limit_eval"),
)
_FIXED = {*_PLACES, "synthetic"} - {"limit_eval"}


def words_on(run: Run, file: Path, records: int, overrides: Sequence[str]) -> list[str]:
    """Return settings that train on synthetic records without noise, with others behind them.

    The data that the new model is scored on are those of the run that wrote the records. Texts are
    decoded as the run's were, unless another ``decode=`` is among the others. Another ``task=``
    among those is of the same data: a classifier of texts that were written for labels.

    Raises:
        ConfigError: if it might be tested on records that the run was trained on: the others say
            where data are, what is held out or which split is scored; or which record is, where
            that follows from its digest, which other columns and another task change.
    """
    from dpft.privacy.sampling import fitting_batch  # with torch, which `override` does without
    from dpft.tasks.own import NOT_READ

    name = next((word[5:] for word in overrides if word.startswith("task=")), run.task["name"])
    shares = run.task.get("dev_share"), run.task.get("test_share")
    by_record = any(shares) and run.task.get("user_column") is None
    if by_record and name != run.task["name"]:
        raise ConfigError(
            f"task={name} would hold out other records than the run did, which was trained on "
            "some of them; expected a run with task.test_file=FILE, or with task.user_column, "
            "which holds out the same users"
        )
    unread = {*NOT_READ, "limit_train"}  # which leave a held-out record's digest as it is
    for word in overrides:
        key = word.partition("=")[0].lstrip("+~")
        setting = key.removeprefix("task.")
        fixed = setting in _FIXED or (by_record and setting not in unread)
        if key == "decode.split" or (key.startswith("task.") and fixed):
            raise ConfigError(
                f"{word} behind --train may have the new model tested on records that the run was "
                "trained on: where the data are, what is held out and which split is scored are "
                "the run's. Leave it out; or type dpft train with task.synthetic=FILE, and judge "
                "yourself what it is tested on"
            )
    words = [f"model={run.model.name}"] if run.model.name != defaults()["model"] else []
    words += _changed("model", run.raw["model"], run.model.name, ("name",))
    usual = (settings_of("optim", "adam") or {}).get("batch_size") or 0
    if records < usual:
        words.append(f"optim.batch_size={fitting_batch(records)}")
    words.append("clip=none")
    if name != run.task["name"]:
        task = {key: run.task[key] for key in _PLACES if key in run.task}
        words += _changed("task", task, name, ())
    else:
        overrides = [word for word in overrides if not word.startswith("task=")]
        words += [f"task={name}", *_changed("task", run.task, name, _NOT_REPEATED)]
    words.append(override("task.synthetic", str(file)))
    # A choice that was typed decides all but the split: single settings would change it again.
    decodes = any(word.startswith("decode=") for word in overrides)
    settings = {"split": run.decode.split} if decodes else asdict(run.decode)
    words += _changed("decode", settings, defaults()["decode"], ())
    return [*words, *overrides]


def override(key: str, value: Any, literal: bool = True) -> str:
    """Return ``key=value`` in Hydra's grammar.

    Args:
        key: of the setting.
        value: a text, a number, a list or the like.
        literal: whether ``${...}`` in a text is itself, and does not stand for another setting.
    """
    return f"{key}={_value(value, literal)}"


def _value(value: Any, literal: bool) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(_value(one, literal) for one in value)}]"
    if not isinstance(value, str):
        return str(value)
    # A word that reads as a number, a truth value or null is quoted to stay a word.
    if re.fullmatch(r"[\w./-]+", value, re.ASCII) and yaml.safe_load(value) == value:
        return value if not re.fullmatch(r"[-+.\d].*|nan|inf", value.lower()) else quoted(value)
    return quoted(value).replace("${", r"\${") if literal else quoted(value)


def _changed(
    group: str, settings: Mapping[str, Any], name: str, without: tuple[str, ...]
) -> list[str]:
    """Return the settings that differ from those of the group's shipped file."""
    shipped = settings_of(group, name) or {}
    return [
        override(f"{group}.{key}", value)
        for key, value in settings.items()
        if key not in without and (key not in shipped or shipped[key] != value)
    ]
