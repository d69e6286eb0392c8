"""Read what a page of a run is made from; nothing is changed in the run's folder.

Guarantee: unless ``private`` is set, no file under the run's ``private/`` is opened, so nothing
that is computed from training records without noise can reach the page.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from dpft.config.errors import DpftError
from dpft.config.files import regular
from dpft.privacy.guarantee import Guarantee
from dpft.report.guarantee import is_held_out
from dpft.runs.atomic import parse_json
from dpft.runs.finished import CONFIG, GENERATIONS, LEDGER, RECORD, damages
from dpft.runs.folders import generations_file
from dpft.runs.ledger import LedgerContents, read_ledger
from dpft.runs.log import REMEDY, read_log
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
    state: str | None = None  # what the sweep's journal says of it
    error: str | None = None  # why it failed. It may quote the data


@dataclass(frozen=True)
class Found:
    """The runs that a report is about, at least one."""

    title: str
    folder: Path  # where the page goes by default
    targets: tuple[Target, ...]
    several: bool  # whether the page is one of several runs, even if only one was found
    metric: str | None = None  # by which a sweep compares its runs; None: the first of each
    searched: bool = False  # whether a sweeper chose settings by the scores of earlier runs


@dataclass(frozen=True)
class Sample:
    """One generation with its prompt and the references."""

    source: str
    prediction: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class Generations:
    """Some of the ``total`` generations of a split, or the reason why none may be shown."""

    split: str
    total: int = 0
    samples: tuple[Sample, ...] = ()
    left_out: str | None = None


@dataclass(frozen=True)
class Gathered:
    """One run as far as it can be read."""

    target: Target  # with its error only if that may be shown
    record: Mapping[str, Any] | None  # None until it is trained, or if it is damaged
    ledger: LedgerContents | None  # None where nothing is private, or if it is damaged
    config: Mapping[str, Any]  # empty if there is none
    generations: Generations | None
    metrics: tuple[Mapping[str, Any], ...]  # of ``private/``; empty unless they were asked for
    evaluations: tuple[Mapping[str, Any], ...]  # empty unless they are public or asked for
    problems: tuple[str, ...]  # what is damaged
    ledger_is_damaged: bool  # there is one, from which no cost can be read

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


def finite(value: Any) -> float | None:
    """Return a number of a record; None if it is not a finite one."""
    number = isinstance(value, float | int) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None


def gather(
    target: Target,
    private: bool = False,
    samples: int | None = None,
    usual: int = 8,
) -> Gathered:
    """Read one run; what is damaged becomes a line of its ``problems``.

    ``private`` decides whether ``private/`` is opened; see `read_generations` for the others.
    """
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

    def by_step(name: str) -> tuple[Mapping[str, Any], ...]:
        found = read(name, lambda: read_log(regular(path / name), REMEDY)) if private else None
        return tuple(found or ())

    record = read("record.json", lambda: read_record(path))
    ledger = read("ledger.jsonl", lambda: read_ledger(path / "ledger.jsonl"))
    identity = read(
        "identity.json", lambda: parse_json(regular(path / "identity.json").read_bytes())
    )
    identity = identity if isinstance(identity, dict) else {}
    config = section(record or identity, "config")
    for problem in _disagreements(record, ledger) if record is not None else ():
        report(problem)
    for damage in damages(path, (RECORD, LEDGER, CONFIG, GENERATIONS)):
        report(
            f"{damage}, though the run was finished: do not rely on it before you know why; "
            "dpft train resume=RUN makes again what can be made again"
        )
    generations = read(".", lambda: read_generations(path, record, config, private, samples, usual))
    metrics, evaluations = by_step("private/metrics.jsonl"), by_step("private/evaluations.jsonl")
    return Gathered(
        target=target if private else replace(target, error=None),
        record=record,
        ledger=ledger,
        config=config,
        generations=generations,
        metrics=metrics,
        evaluations=evaluations or tuple(section(record, "evaluation").get("history") or ()),
        problems=tuple(problems),
        ledger_is_damaged=ledger is None and (path / "ledger.jsonl").exists(),
    )


def _disagreements(record: Mapping[str, Any], ledger: LedgerContents | None) -> Iterator[str]:
    if wrong := impossible_share(record):
        yield f"record.json: {wrong}: restore it from a copy"
    if ledger is None:
        return
    # The header is written where a run starts: it does not count steps that were repeated.
    parts = (section(one, "mechanism") for one in (ledger.header, record))
    under, stated_under = ({k: v for k, v in one.items() if k != "repeated"} for one in parts)
    if under != stated_under:
        yield (
            "ledger.jsonl was spent under another mechanism than record.json states: "
            f"{_DO_NOT_RELY}"
        )
    taken = record["privacy"]["steps_taken"]
    spent, rdp = ledger.epsilon, section(record["privacy"], "epsilon").get("rdp")
    if ledger.steps_spent != taken:
        yield f"ledger.jsonl has {ledger.steps_spent} steps, record.json {taken}: {_DO_NOT_RELY}"
    elif rdp is not None and spent is not None and not math.isclose(rdp, spent, rel_tol=1e-6):
        yield f"ledger.jsonl ends at epsilon {spent}, record.json states {rdp}: {_DO_NOT_RELY}"


def read_generations(
    path: Path,
    record: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    private: bool = False,
    asked: int | None = None,
    usual: int = 8,
) -> Generations | None:
    """Return samples, evenly spread, of the split that was decoded; None without generations.

    Args:
        path: of the run.
        record: names the file; None: the usual one.
        config: of the run.
        private: whether what no guarantee covers may be shown.
        asked: how many samples were asked for; None: as many as ``usual``, and none of data whose
            prompts and references may not be known to the public.
        usual: see ``asked``.

    Raises:
        ValueError: the file is not UTF-8, or a line is no generation.
    """
    split = str(section(config, "decode").get("split", "test"))
    name = str(section(record, "generations").get(split, f"generations/{split}.jsonl"))
    file = generations_file(path, name)
    if not file.is_file():
        return None
    reason = None if private else _withheld(record, config, asked)
    if reason is not None:
        return Generations(split, left_out=reason)
    # Not splitlines: texts may hold other line separators, unescaped in JSON.
    lines = file.read_text(encoding="utf-8").split("\n")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            if line:
                value = json.loads(line)
                texts = value.get("source", ""), value["prediction"], tuple(value["references"])
                found.append(Sample(*texts))
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{name}, line {number}: no prediction with its references") from error
    count = min(usual if asked is None else asked, len(found))
    chosen = tuple(found[place * len(found) // count] for place in range(count))
    return Generations(split, len(found), chosen)


def _withheld(
    record: Mapping[str, Any] | None, config: Mapping[str, Any], asked: int | None
) -> str | None:
    """Return why prompts and references may not be shown; None if they may.

    A number of samples that is typed permits prompts of own data, but none that were held out.
    """
    task = section(config, "task")
    if is_held_out({**(record or {}), "config": config}):
        return (
            "The prompts and references were held out from the private data, and no guarantee "
            "covers them: --private shows some, on a page that must not be published."
        )
    own = "train_file" in task and task.get("source") != "sample"
    if (own or ":" in str(task.get("name", ""))) and asked is None:
        return (
            "Whether prompts and references of your own data may be published is not known here: "
            "if they may, --samples 8 shows some."
        )
    return None
