"""Overlap of synthetic records with training records, and the settings of a run on them.

The overlap is computed from the training records without noise, so it must not be published.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError
from dpft.config.folder import defaults, settings_of
from dpft.config.overrides import override
from dpft.config.schema import Run
from dpft.privacy.spec import fitting_batch
from dpft.runs.atomic import sha256_file
from dpft.tasks.base import Task
from dpft.tasks.objectives.records import Conversation, LabelledText, TextRecord
from dpft.tasks.own import NOT_READ
from dpft.training.held_out import check_scored
from dpft.training.synthesis import side_path

OVERLAP = 8
"""Words of a run that two texts have in common."""

_WORD = re.compile(r"\w+")
# Settings of the training records and of whose they are. The column of users is kept, since it
# decides who is held out of the real records.
_OF_TRAINING = (
    *("name", "synthetic", "train_size", "limit_train"),
    *("unit", "records_per_user"),
)
# Settings of a task that say where the data are and what is held out of them.
_PLACES = (
    *("source", "data_dir", "train_file", "dev_file", "test_file", "hub", "hub_config"),
    *("train_split", "dev_split", "test_split", "dev_share", "test_share", "split_seed"),
    *("user_column", "sample_seed", "limit_eval"),
)
_FIXED = {*_PLACES, "synthetic"} - {"limit_eval"}


@dataclass(frozen=True)
class Generated:
    """A file of `dpft generate` with its side file.

    Attributes:
        file: the records.
        side: the content of ``FILE.guarantee.json``.
        texts: what the model wrote of each record, without the source that it was given.
    """

    file: Path
    side: Mapping[str, Any]
    texts: Sequence[str]


@dataclass(frozen=True)
class Overlap:
    """What of some texts occurs in training records.

    Attributes:
        runs: share of the texts' runs of `OVERLAP` words; None if there are no runs.
        holding: share of texts that hold such a run.
        copies: share of texts that are a training record, word for word.
    """

    runs: float | None
    holding: float
    copies: float


def read_generated(task: Task, run: Path, file: Path | None, config_hash: str) -> Generated:
    """Read synthetic records of a run.

    Args:
        task: of the run.
        run: its folder.
        file: the records; None: those in ``synthetic/``.
        config_hash: of the run.

    Raises:
        ConfigError: if there is no such file, or several and none was named, or it was changed or
            made by another run.
    """
    if file is None:
        folder = run / "synthetic"
        found = sorted(one for one in folder.glob("*") if side_path(one).is_file())
        if len(found) != 1:
            raise ConfigError(
                f"{folder} holds {len(found) or 'no'} files of synthetic records; expected one. "
                + (f"Type --file {found[0]}" if found else f"Type dpft generate {run} n=500 first")
            )
        file = found[0]
    if not file.is_file():
        raise ConfigError(f"--file is {file}, and there is no such file")
    beside = side_path(file)
    try:
        side = json.loads(beside.read_text(encoding="utf-8"))
        known = side["sha256"], side["run"]["config_hash"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{beside} cannot be read ({error}), so that no guarantee of these records is known; "
            "expected it as dpft generate wrote it"
        ) from error
    if known != (sha256_file(file), config_hash):
        what = "was changed since" if known[1] == config_hash else "was written by another run"
        raise ConfigError(
            f"{file} {what}, as {beside.name} shows; expected the file as dpft generate wrote it"
        )
    return Generated(file, side, [written(record) for record in task.records_of(file)])


def held_out_texts(task: Task, split: str) -> list[str]:
    """Return the texts of a split that was not trained on.

    Raises:
        ConfigError: if most of its records are trained on.
        DataError: if there are none.
    """
    records = task.records(split)
    check_scored(task, split, records)
    return [written(record) for record in records]


def written(record: Any) -> str:
    """Return what a model writes of a record.

    Raises:
        ConfigError: for a record of something else than text.
    """
    if isinstance(record, Conversation):
        return "\n".join(f"{role}: {text}" for role, text in record.turns)
    if isinstance(record, TextRecord):
        return record.target
    if isinstance(record, LabelledText):
        return record.source
    raise ConfigError(f"got records of {type(record).__name__}; expected texts")


def overlaps(
    groups: Sequence[Sequence[str]], training: Iterable[str], n: int = OVERLAP
) -> list[Overlap]:
    """Compare groups of texts with training records, by words in lower case.

    The training records are read once, and none is held in memory: they may be many.

    Args:
        groups: of texts.
        training: the training records.
        n: words of a run.
    """
    split = [[_words(text) for text in texts] for texts in groups]
    asked = {run for texts in split for text in texts for run in _runs(text, n)}
    wholes = {tuple(text) for texts in split for text in texts}
    seen, copied = set[tuple[str, ...]](), set[tuple[str, ...]]()
    for record in map(_words, training):
        seen.update(run for run in _runs(record, n) if run in asked)
        if (whole := tuple(record)) in wholes:
            copied.add(whole)
    return [_overlap(texts, seen, copied, n) for texts in split]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _runs(words: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    return (tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def _overlap(
    texts: Sequence[Sequence[str]],
    seen: Set[tuple[str, ...]],
    copied: Set[tuple[str, ...]],
    n: int,
) -> Overlap:
    hits = [[run in seen for run in _runs(text, n)] for text in texts]
    total = sum(map(len, hits))
    return Overlap(
        sum(map(sum, hits)) / total if total else None,
        sum(map(any, hits)) / len(texts),
        sum(tuple(text) in copied for text in texts) / len(texts),
    )


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
        if (key not in _OF_TRAINING if same else key in _PLACES)
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
