"""Read what a page of a run is made from; nothing is changed in the run's folder.

Guarantee: no file under the run's ``private/`` is opened, so nothing that is computed from training
records without noise can reach the page. Texts are read only of data that are generated or
published, see `samples`.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dpft.config.errors import DpftError
from dpft.config.flags import TRAINED_BASE, Flag, has
from dpft.config.folder import settings_of
from dpft.config.published import PUBLISHED_TASKS, is_other_size, is_part
from dpft.config.regular_files import regular
from dpft.privacy.guarantee import Guarantee
from dpft.runs.atomic import parse_json
from dpft.runs.folders import (
    CONFIG,
    GENERATIONS,
    LEDGER,
    RECORD,
    damages,
    generations_files,
    is_set_aside,
)
from dpft.runs.ledger import LedgerContents, read_ledger
from dpft.runs.record import read_record
from dpft.tasks.scores import impossible_share

T = TypeVar("T")
_DO_NOT_RELY = "do not rely on the guarantee before you know why"


@dataclass(frozen=True)
class Target:
    """One run, or a point of a sweep that may have none yet."""

    path: Path
    name: str  # unique on the page, without folders of the machine
    label: str | None = None  # its settings as typed in a sweep
    state: str | None = None  # of the point
    error: str | None = None  # why it failed. It may quote the data, so it is on no page


@dataclass(frozen=True)
class Found:
    """The runs that a report is about, at least one."""

    title: str
    folder: Path  # where the page goes by default
    targets: tuple[Target, ...]
    several: bool  # whether the page is one of several runs, even if only one was found


@dataclass(frozen=True)
class Gathered:
    """One run as far as it can be read."""

    target: Target
    record: Mapping[str, Any] | None  # None until it is trained, or if it is damaged
    ledger: LedgerContents | None  # None where nothing is private, or if it is damaged
    config: Mapping[str, Any]  # empty if there is none
    problems: tuple[str, ...]  # what is damaged
    ledger_is_damaged: bool  # there is one, from which no cost can be read
    samples: Mapping[tuple[str, str], str]  # generations by prompt and reference

    @property
    def name(self) -> str:
        """The name of the run on the page."""
        return self.target.name

    @property
    def stage(self) -> str:
        """The progress of the run, in words."""
        if self.record is None:
            return f"unfinished: {self.target.state}" if self.target.state else "unfinished"
        scored = self.record.get("stage") == "scored"
        return "finished" if scored else "unfinished: trained, not scored yet"

    @property
    def mechanism(self) -> Mapping[str, Any]:
        """The mechanism of the record, or of the ledger while there is no record."""
        header = None if self.ledger is None else self.ledger.header
        return section(header if self.record is None else self.record, "mechanism")

    @property
    def guarantee(self) -> Guarantee | None:
        """The statement of its record; None while there is none."""
        return None if self.record is None else Guarantee.of_record(self.record)

    @property
    def private(self) -> bool:
        """Return whether any guarantee holds, or will."""
        given = self.guarantee
        return bool(self.mechanism.get("private")) if given is None else given.private


def section(mapping: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    """Return a part of a mapping; an empty one if it is missing or no mapping."""
    value = (mapping or {}).get(name)
    return value if isinstance(value, Mapping) else {}


def gather(target: Target) -> Gathered:
    """Read one run; what is damaged becomes a line of its ``problems``."""
    path, problems = target.path, list[str]()

    def report(problem: Exception | str) -> None:
        text = str(problem)  # without the folders of this machine
        for folder in (path, path.absolute(), path.resolve()):
            text = text.replace(f"{folder}/", "").replace(str(folder), "this run")
        problems.append(text)

    def read(name: str, make: Callable[[], T]) -> T | None:
        if not (path / name).exists():
            return None
        try:
            return make()
        except (DpftError, OSError, ValueError) as error:
            report(error)
            return None

    record = read("record.json", lambda: read_record(path))
    ledger = read("ledger.jsonl", lambda: read_ledger(path / "ledger.jsonl"))
    file = path / "identity.json"
    identity = read(file.name, lambda: parse_json(regular(file).read_bytes()))
    identity = identity if isinstance(identity, dict) else {}
    texts = read("generations", lambda: {} if record is None else samples(path, record))
    for problem in _disagreements(record, ledger) if record is not None else ():
        report(problem)
    for damage in damages(path, (RECORD, LEDGER, CONFIG, GENERATIONS)):
        report(
            f"{damage}, though the run was finished: do not rely on it before you know why; "
            "dpft train resume=RUN makes again what can be made again"
        )
    return Gathered(
        target=target,
        record=record,
        ledger=ledger,
        config=section(record or identity, "config"),
        problems=tuple(problems),
        ledger_is_damaged=ledger is None and (path / "ledger.jsonl").exists(),
        samples=texts or {},
    )


def siblings(run: Gathered) -> list[Gathered]:
    """Return the undamaged runs in the folder of a run that have its task and no privacy.

    Ledgers, checksums and generations are read of these alone: a folder may hold hundreds of runs.
    """
    own, found = run.target.path.resolve(), list[Gathered]()
    for path in sorted(own.parent.iterdir()):
        with suppress(DpftError, OSError, ValueError, LookupError, TypeError):  # not trained
            record = parse_json(regular(path / RECORD).read_bytes())
            same = record["config"]["task"] == run.config.get("task")
            other = path != own and not path.is_symlink() and not is_set_aside(path)
            if other and same and record["privacy"]["kind"] != "private":
                found.append(gather(Target(path, path.name)))
    return [other for other in found if not other.problems]


def published(record: Mapping[str, Any], split: str) -> bool:
    """Return whether all that a run's model has seen, and its prompts, are generated or published.

    A record has a digest of its references only where the task's data are public. Files in the
    form of a published task may hold other data, so that both splits must be as large as published.
    """
    data, of = record["dataset"], section(section(record, "scores"), split)
    other = has(record["flags"], *TRAINED_BASE, Flag.SYNTHETIC_DATA, Flag.OTHER_FILES)
    if other or not of.get("references"):
        return False
    if data["source"] == "sample":
        return True
    if data["task"] not in PUBLISHED_TASKS or is_part(record, split):
        return False
    size = (settings_of("task", data["task"]) or {}).get("train_size")
    return size is not None and not is_other_size(data["counts"]["train"], size)


def samples(path: Path, record: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return three generations by prompt and reference, evenly spread; none if not `published`."""
    split = record["config"]["decode"]["split"]
    file = generations_files(path, record).get(split)
    if file is None or not file.exists() or not published(record, split):
        return {}
    # Not splitlines: texts may hold other line separators, unescaped in JSON.
    lines = regular(file).read_text(encoding="utf-8").rstrip("\n").split("\n")
    try:
        every = [json.loads(lines[len(lines) * third // 3]) for third in range(3)]
        texts = [(str(x["source"]), str(x["references"][0]), str(x["prediction"])) for x in every]
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} has a line that is no prediction") from error
    return {(asked, wanted): said for asked, wanted, said in texts if asked and said}


def _disagreements(record: Mapping[str, Any], ledger: LedgerContents | None) -> Iterator[str]:
    if wrong := impossible_share(record):
        yield f"record.json: {wrong}: restore it from a copy"
    if ledger is None:
        return
    # The header is written where a run starts: it does not count steps that were repeated.
    parts = (section(one, "mechanism") for one in (ledger.header, record))
    under, stated_under = ({k: v for k, v in one.items() if k != "repeated"} for one in parts)
    if under != stated_under:
        unlike = "was spent under another mechanism than record.json states"
        yield f"ledger.jsonl {unlike}: {_DO_NOT_RELY}"
    taken = record["privacy"]["steps_taken"]
    spent, rdp = ledger.epsilon, section(record["privacy"], "epsilon").get("rdp")
    if ledger.steps_spent != taken:
        yield f"ledger.jsonl has {ledger.steps_spent} steps, record.json {taken}: {_DO_NOT_RELY}"
    elif rdp is not None and spent is not None and not math.isclose(rdp, spent, rel_tol=1e-6):
        yield f"ledger.jsonl ends at epsilon {spent}, record.json states {rdp}: {_DO_NOT_RELY}"
