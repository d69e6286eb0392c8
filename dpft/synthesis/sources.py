"""Where the sources come from that a conditional model writes targets for.

The guarantee of training covers what the model learned. A source is copied into the synthetic
record as it is: no noise protects it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.errors import ConfigError, DataError
from dpft.objectives.records import TextRecord
from dpft.tasks.base import Task

_CHOICES = (
    "sources=dev or sources=test (of the task's data; are they public?), sources=FILE (in the "
    "task's own form; its targets are not used), or sources=sample (made up by the task's sample "
    "generator)"
)


@dataclass(frozen=True)
class Sources:
    """Rows whose sources are given to the model.

    Attributes:
        rows: in the task's form, one for each record to be written; None for a task whose texts
            have no source.
        distinct: how many different sources there are.
        origin: where they are from, in words.
        privacy: what is known of their privacy, in words.
    """

    rows: Sequence[Any] | None
    distinct: int
    origin: str
    privacy: str


def find_sources(task: Task, choice: str | None, count: int, seed: int) -> Sources:
    """``count`` rows drawn from ``choice``, each source as often as any other, up to one.

    Raises:
        ConfigError: for no choice, an unknown one, the training split or a file of it, or a task
            whose model writes no text.
        DataError: if the rows cannot be read.
    """
    if task.needs.kind != "causal":
        raise ConfigError(
            f"task {task.name} trains a model that writes no text; expected one such as e2e"
        )
    if task.unconditional:
        if choice is not None:
            raise ConfigError(f"task {task.name} writes texts without a source; leave sources out")
        return Sources(
            None, 0, "none: whole texts, from the end token on", "there are no sources to protect"
        )
    if choice is None:
        raise ConfigError(
            "no sources given: the model writes targets for sources, and those of the training "
            f"records are private themselves. Type {_CHOICES}"
        )
    if choice == "train":
        raise _refused("sources=train")
    rows, origin, privacy = _rows(task, choice, seed)
    distinct = list({text_record(task, row).source: row for row in rows}.values())
    random.Random(f"dpft sources {seed}").shuffle(distinct)
    chosen = [distinct[i % len(distinct)] for i in range(count)]
    return Sources(chosen, len(distinct), origin, privacy)


def training_files(task: Task) -> list[Path]:
    """The files that hold the task's training records, as far as its settings still find them.

    Not ``task.synthetic``: its records have the guarantee of the run that wrote them, or none.
    """
    if (file := getattr(task, "train_file", None)) is not None:
        return [Path(file)]
    try:
        _, folder = task.location
    except DataError:
        return []
    if folder is None or not folder.is_dir():
        return []
    return [file for form in task.dataset.all_forms() for file in form.found(folder, "train")]


def text_record(task: Task, row: Any) -> TextRecord:
    """A row's source and target.

    Raises:
        ConfigError: if the task's records are not texts.
    """
    record = task.record(row)
    if not isinstance(record, TextRecord):
        raise ConfigError(
            f"records of task {task.name} are {type(record).__name__}; expected texts with a source"
        )
    return record


def _rows(task: Task, choice: str, seed: int) -> tuple[Sequence[Any], str, str]:
    user = "whether they are public is for whoever releases the file to say"
    if choice in ("dev", "test"):
        return (
            task.rows(choice),
            f"the {choice} split of {task.name} ({task.location[0]})",
            f"copied as they are, and not covered by the guarantee, which is for training records; "
            f"{user}",
        )
    if choice == "sample":
        # Another seed than that of the records which a run on the sample was trained on.
        made_up = type(task)(source="sample", sample_seed=task.sample_seed + 1 + seed)
        return (
            made_up.rows("train"),
            f"the sample generator of {task.name}",
            "made up by a program that reads no data: they carry no private information",
        )
    path = Path(choice)
    if not path.is_file():
        raise ConfigError(f"sources is {choice!r}, and there is no such file; expected {_CHOICES}")
    if any(_same(path, file) for file in training_files(task)):
        raise _refused(f"sources={choice} is a file of the training records. It")
    return (
        task.read_file(path),
        f"the file {path.name}",
        f"copied as they are, and not covered by the guarantee; {user}",
    )


def _refused(what: str) -> ConfigError:
    return ConfigError(
        f"{what} would copy the sources of the training records into the output, where no "
        f"guarantee covers them. Type {_CHOICES}"
    )


def _same(first: Path, second: Path) -> bool:
    """Whether two paths are one file, or files of equal bytes."""
    if not second.is_file():
        return False
    if first.resolve() == second.resolve():
        return True
    return first.stat().st_size == second.stat().st_size and _digest(first) == _digest(second)


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
