"""The settings of a run on synthetic records, whose scores say what the records are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError
from dpft.config.folder import defaults, settings_of
from dpft.config.overrides import override
from dpft.config.schema import Run
from dpft.privacy.sampling import fitting_batch
from dpft.tasks.own import NOT_READ

# Settings of the training records and of whose they are. The column of users is kept, since it
# decides who is held out of the real records.
_OF_TRAINING = (
    *("name", "synthetic", "train_size", "limit_train"),
    *("unit", "records_per_user"),
)
PLACES = (
    *("source", "data_dir", "train_file", "dev_file", "test_file", "hub", "hub_config"),
    *("train_split", "dev_split", "test_split", "dev_share", "test_share", "split_seed"),
    *("user_column", "sample_seed", "limit_eval"),
)
"""Settings of a task that say where the data are and what is held out of them."""
_FIXED = {*PLACES, "synthetic"} - {"limit_eval"}


def words_on(run: Run, file: Path, records: int, overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a run without privacy on synthetic records.

    It is evaluated on the data of the run that wrote them, and decodes as that run did unless
    ``decode=`` is typed. A typed ``task=`` is another task of the same data, such as a classifier
    of texts that were written for labels.

    Args:
        run: whose model wrote the records.
        file: the synthetic records.
        records: how many there are.
        overrides: further settings, as typed.

    Raises:
        ConfigError: if the new model might be tested on records that the run was trained on: the
            overrides say where data are, what is held out or which split is scored; or which
            record is, where that follows from its digest, which other columns and another task
            change.
    """
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
    same = name == run.task["name"]
    kept = {
        key: value
        for key, value in run.task.items()
        if (key not in _OF_TRAINING if same else key in PLACES)
    }
    words = [f"task={name}", *_changed("task", kept, name)]
    words.append(override("task.synthetic", str(file)))
    if run.model.name != defaults()["model"]:
        words.append(f"model={run.model.name}")
    model = {key: value for key, value in run.raw["model"].items() if key != "name"}
    words += _changed("model", model, run.model.name)
    usual = (settings_of("optim", "adam") or {}).get("batch_size") or 0
    if records < usual:
        words.append(f"optim.batch_size={fitting_batch(records)}")
    # A choice that was typed decides all but the split: single settings would change it again.
    decodes = any(word.startswith("decode=") for word in overrides)
    settings = {"split": run.decode.split} if decodes else asdict(run.decode)
    words += ["clip=none", *_changed("decode", settings, defaults()["decode"])]
    return [*words, *(word for word in overrides if not word.startswith("task="))]


def _changed(group: str, settings: Mapping[str, Any], name: str) -> list[str]:
    """Return the settings that differ from those of the group's shipped file, as overrides."""
    shipped = settings_of(group, name) or {}
    return [
        override(f"{group}.{key}", value)
        for key, value in settings.items()
        if key not in shipped or shipped[key] != value
    ]
