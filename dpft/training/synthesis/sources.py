"""Where the sources come from that a conditional model writes targets for.

The guarantee of training covers what the model learned. A source is copied into the synthetic
record as it is: no noise protects it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dpft.config.errors import ConfigError, DataError
from dpft.tasks.base import Task
from dpft.tasks.objectives.records import TextRecord
from dpft.tasks.own_texts import TextToText

_CHOICES = (
    "sources=dev or sources=test (of the task's data; are they public?), sources=FILE (in the "
    "task's own form; its targets are not used), 'sources=[yes,no]' (typed here), or "
    "sources=sample (made up by the task's sample generator)"
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
        in_training: how many different ones are sources of training records too: a figure of
            private data; None where it was not counted.
    """

    rows: Sequence[Any] | None
    distinct: int
    origin: str
    privacy: str
    in_training: int | None = None


def find_sources(
    task: Task, choice: str | None, count: int, seed: int, check: bool = True
) -> Sources:
    """``count`` rows drawn from ``choice``, each source as often as any other, up to one.

    Args:
        task: of the run.
        choice: what was asked for.
        count: how many rows.
        seed: of their order.
        check: whether to compare the sources with those of the training records. All records of
            the task are read for it, whatever part was trained on; not ``task.synthetic``, whose
            records have the guarantee of the run that wrote them, or none.

    Raises:
        ConfigError: for no choice, an unknown one, the training split, sources most of which are
            those of training records, or a task whose model writes no text.
        DataError: if the rows cannot be read.
    """
    if task.writes_nothing is not None:
        raise ConfigError(task.writes_nothing)
    if task.writes_whole:
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
    known = None
    if check and choice != "sample" and not is_typed(choice) and task.synthetic is None:
        known = _in_training(task, {text_record(task, row).source for row in distinct})
    return Sources(chosen, len(distinct), origin, privacy, known)


def is_typed(choice: str | None) -> bool:
    """Whether sources stand in the command itself, as in ``sources=[yes,no]``."""
    return choice is not None and choice.startswith("[")


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
        return (
            task.sample_rows(task.sample_seed + 1 + seed),
            f"the sample generator of {task.name}",
            "made up by a program that reads no data: they carry no private information",
        )
    if is_typed(choice):
        return (
            _typed(task, choice),
            f"typed with the command: {choice}",
            "copied as they are, and not covered by the guarantee: that they occur is known to "
            "whoever reads the file",
        )
    path = Path(choice)
    if not path.is_file():
        raise ConfigError(f"sources is {choice!r}, and there is no such file; expected {_CHOICES}")
    return (
        task.read_file(path),
        f"the file {path.name}",
        f"copied as they are, and not covered by the guarantee; {user}",
    )


def _typed(task: Task, choice: str) -> Sequence[Any]:
    if not isinstance(task, TextToText):
        raise ConfigError(
            f"sources is {choice}, and those of task {task.name} are no plain texts; expected one "
            "of the others, or a run of task=text2text"
        )
    try:
        texts = yaml.load(choice, Loader=yaml.BaseLoader)  # yes stays a word
    except yaml.YAMLError:
        texts = None
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t for t in texts):
        raise ConfigError(f"sources is {choice!r}; expected texts, as in 'sources=[yes,no]'")
    return task.source_rows(texts)


def _in_training(task: Task, sources: Collection[str]) -> int:
    """How many of the sources are those of training records: a figure of private data.

    Raises:
        ConfigError: if most are, or it cannot be told.
    """
    try:
        trained = {text_record(task, row).source for row in task.rows("train")}
    except DataError as error:
        raise ConfigError(
            "whether these sources are those of the training records cannot be told, since they "
            f"are not found: {error}. Type the command where the run's settings find them, or "
            "check_sources=false if you know that the sources are no training records"
        ) from error
    known = sum(source in trained for source in sources)
    if 2 * known > len(sources):
        raise _refused("these sources are mostly those of the training records. That")
    return known


def _refused(what: str) -> ConfigError:
    return ConfigError(
        f"{what} would copy the sources of the training records into the output, where no "
        f"guarantee covers them. Type {_CHOICES}"
    )
