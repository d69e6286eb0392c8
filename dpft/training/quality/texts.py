"""The texts that are compared: of synthetic records, and of real ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError, DataError
from dpft.runs.atomic import sha256_file
from dpft.tasks.base import Task
from dpft.tasks.objectives.records import Conversation, LabelledText, TextRecord
from dpft.training.held_out import check_repeated, check_scored, is_trained_on
from dpft.training.synthesis import side_path


@dataclass(frozen=True)
class Generated:
    """A file of `dpft generate` with what lies beside it.

    Attributes:
        file: the records.
        side: the content of ``FILE.guarantee.json``.
        texts: what the model wrote of each record; the source that it was given is not in it.
    """

    file: Path
    side: Mapping[str, Any]
    texts: Sequence[str]


def read_generated(task: Task, run: Path, file: Path | None, config_hash: str) -> Generated:
    """Synthetic records of a run.

    Args:
        task: of the run.
        run: its folder.
        file: the records; None: those in ``synthetic/``.
        config_hash: of the run.

    Raises:
        ConfigError: if there is no such file, or several and none was named, or no guarantee of
            this run is known for it: it was changed, or made by another run.
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
            f"{file} {what}, as {beside.name} shows: what the guarantee of {run} says of it is not "
            "known; expected the file as dpft generate wrote it"
        )
    return Generated(file, side, [written(record) for record in task.records_of(file)])


def real_texts(task: Task, reference: str | None, split: str) -> tuple[list[str], str]:
    """Texts of real records that were not trained on, and where they are from, in words.

    Args:
        task: of the run.
        reference: ``dev``, ``test`` or a file in the task's form; None: the ``split``.
        split: that the run was scored on.

    Raises:
        ConfigError: for the training split, or a file of it.
        DataError: if there are none.
    """
    asked = reference or split
    if asked == "train":
        raise ConfigError(
            "the reference is the training split, which the model has seen; expected "
            "--reference dev, test or FILE"
        )
    if asked in ("dev", "test"):
        records = task.records(asked)
        check_scored(task, asked, records)
        return [written(record) for record in records], f"the {asked} split"
    path = Path(asked)
    if not path.is_file():
        raise ConfigError(f"--reference is {asked!r}; expected dev, test or a file")
    if is_trained_on(path, task):
        raise ConfigError(
            f"the reference {path} is trained on, and figures of it would be published without "
            "noise; expected --reference dev, test or a FILE of other records"
        )
    records = task.records_of(path)
    texts = [written(record) for record in records]
    if not texts:
        raise DataError(f"{path} has no records; expected some to compare with")
    check_repeated(
        task.repeated(records), f"the reference {path}", "--reference dev, test or a FILE of them"
    )
    return texts, f"the file {path.name}"


def written(record: Any) -> str:
    """What a model writes of a record.

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
