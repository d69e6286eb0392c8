"""What a page of a run is made from, read from its folder; nothing is changed there.

Guarantee: unless `Options.private` is set, no file under the run's ``private/`` is opened, so
nothing that is computed from training records without noise can reach the page.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dpft.config.errors import DpftError
from dpft.config.files import regular
from dpft.privacy.guarantee import Guarantee
from dpft.report.pages.generations import Generations, read_generations
from dpft.report.pages.target import Target
from dpft.report.pages.values import parsed, section
from dpft.runs.atomic import parse_json, sha256_file
from dpft.runs.finished import damages
from dpft.runs.ledger import LedgerContents, read_ledger
from dpft.runs.record import read_record
from dpft.tasks.scores import impossible_share

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """What a page shows.

    Attributes:
        private: also what no guarantee covers.
        samples: generations of each run; None: as many as fit, and none of data whose prompts
            and references may not be known to the public.
        points: of all lines of a chart together.
    """

    private: bool = False
    samples: int | None = None
    points: int = 4000


@dataclass(frozen=True)
class Gathered:
    """One run as far as it can be read.

    Attributes:
        name: on the page.
        record: see `dpft.runs.RunRecord`; None until it is trained, or if it is damaged.
        ledger: None where nothing is private, or if it is damaged.
        config: the settings that define the run; empty if they are nowhere to be found.
        generations: of the split that was decoded.
        evaluations: figures of held-out records by step; empty unless they are public or asked for.
        metrics: lines of ``private/metrics.jsonl``; empty unless they were asked for.
        digests: SHA-256 of files, by name.
        problems: what is damaged, for the page.
        label: its settings as typed in a sweep.
        state: what a sweep's journal says of it.
        error: why it failed, if that may be shown.
    """

    name: str
    record: Mapping[str, Any] | None
    ledger: LedgerContents | None
    config: Mapping[str, Any]
    generations: Generations | None
    metrics: tuple[Mapping[str, Any], ...]
    evaluations: tuple[Mapping[str, Any], ...]
    digests: Mapping[str, str]
    problems: tuple[str, ...]
    label: str | None
    state: str | None
    error: str | None

    @property
    def finished(self) -> bool:
        """Whether it was trained and scored."""
        return self.record is not None and self.record.get("stage") == "scored"

    @property
    def stage(self) -> str:
        """How far it is, in words."""
        if self.finished:
            return "finished"
        if self.record is not None:
            return "unfinished: trained, not scored yet"
        return f"unfinished: {self.state}" if self.state else "unfinished"

    @property
    def mechanism(self) -> Mapping[str, Any]:
        """Of the record, or of the ledger while there is no record; empty without privacy."""
        return section(self.header if self.record is None else self.record, "mechanism")

    @property
    def guarantee(self) -> Guarantee | None:
        """What its record states; None while there is none."""
        return None if self.record is None else Guarantee.of_record(self.record)

    @property
    def begun(self) -> bool:
        """Whether there is anything of it that can be read."""
        return self.record is not None or self.ledger is not None

    @property
    def ledger_is_damaged(self) -> bool:
        """Whether there is a ledger that does not tell what was spent."""
        return self.ledger is None and "ledger.jsonl" in self.digests

    @property
    def private(self) -> bool:
        """Whether any guarantee holds, or will."""
        if self.guarantee is not None:
            return self.guarantee.private
        return bool(self.mechanism.get("private"))

    @property
    def header(self) -> Mapping[str, Any]:
        """Of the ledger."""
        return {} if self.ledger is None else self.ledger.header

    @property
    def entries(self) -> Sequence[Mapping[str, Any]]:
        """Of the ledger, one for each step that it has a line of, each time that it was spent."""
        return [] if self.ledger is None else self.ledger.entries

    @property
    def next_step(self) -> int:
        """How many steps the weights have behind them, at most, by the ledger."""
        return 0 if self.ledger is None else self.ledger.next_step


def gather(
    target: Target, options: Options, usual_samples: int, prompts: Collection[str] = ()
) -> Gathered:
    """Read one run; what is damaged becomes a line of its ``problems``.

    Args:
        target: where it lies.
        options: decides whether ``private/`` is opened.
        usual_samples: of each run, unless the options say otherwise.
        prompts: whose answers to show, where the run has them.
    """
    path, reader = target.path, _Reader(target.path)
    record = reader.read("record.json", lambda: read_record(path))
    ledger = reader.read("ledger.jsonl", lambda: read_ledger(path / "ledger.jsonl"))
    identity = reader.read("identity.json", lambda: _mapping(path / "identity.json"))
    config = section(record or identity or {}, "config")
    if record is not None and (wrong := impossible_share(record)):
        reader.report(f"record.json: {wrong}: restore it from a copy")
    for problem in (*_disagreements(record, ledger, identity), *_damages(path)):
        reader.report(problem)
    generations = reader.read(
        ".",
        lambda: read_generations(
            path, record, config, options.private, options.samples, usual_samples, prompts
        ),
    )
    for problem in generations.problems if generations is not None else ():
        reader.report(problem)
    known = section(record or {}, "evaluation").get("history") or ()
    digests = {name: reader.digest(name) for name in ("record.json", "ledger.jsonl")}
    return Gathered(
        name=target.name,
        record=record,
        ledger=ledger,
        config=config,
        generations=generations,
        metrics=reader.by_step("metrics.jsonl") if options.private else (),
        evaluations=(reader.by_step("evaluations.jsonl") if options.private else ())
        or tuple(known),
        digests={name: digest for name, digest in digests.items() if digest is not None},
        problems=tuple(reader.problems),
        label=target.label,
        state=target.state,
        error=target.error if options.private else None,
    )


def without_copies(runs: Sequence[Gathered]) -> tuple[list[Gathered], list[str]]:
    """Each training once, however often its folder was copied.

    Copies are no further seeds, and spend nothing.

    Returns:
        The first of each, and a line on every other one.
    """
    kept: dict[str | int, Gathered] = {}
    said = []
    for place, run in enumerate(runs):
        record = run.record or {}
        scores = [(split, part["metrics"]) for split, part in record.get("scores", {}).items()]
        # No two trainings take the same time to the last of sixteen digits.
        parts = [scores, *(record.get(name) for name in ("config", "training", "selection"))]
        first = kept.setdefault(json.dumps(parts, sort_keys=True) if record else place, run)
        if first is not run:
            said.append(f"{run.name} is a copy of {first.name}, which counts once: it is left out")
    return [*kept.values()], said


class _Reader:
    """Reads the files of a run, and keeps what is wrong with them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []

    def read(self, name: str, make: Callable[[], T]) -> T | None:
        """What ``make`` returns; None if there is no file of that name, or if it is damaged."""
        if not (self.path / name).exists():
            return None
        try:
            return make()
        except (DpftError, OSError, ValueError) as error:
            self.report(error)
            return None

    def digest(self, name: str) -> str | None:
        """SHA-256 of a file."""
        return self.read(name, lambda: sha256_file(self.path / name))

    def by_step(self, file: str) -> tuple[Mapping[str, Any], ...]:
        """The lines of a file in ``private/``; one that a kill has torn is no problem."""
        name = f"private/{file}"
        data = self.read(name, lambda: regular(self.path / name).read_bytes()) or b""
        lines = [parsed(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
        steps = [line for line in lines if line and isinstance(line.get("step"), int)]
        if len(steps) < len(lines):
            self.report(
                f"{name}: {len(lines) - len(steps)} lines are no metrics of a step and left out"
            )
        return tuple(steps)

    def report(self, problem: Exception | str) -> None:
        """Keep a message, without the folders of this machine."""
        text = str(problem)
        for folder in (self.path, self.path.absolute(), self.path.resolve()):
            text = text.replace(f"{folder}/", "").replace(str(folder), "this run")
        self.problems.append(text)


def _disagreements(
    record: Mapping[str, Any] | None,
    ledger: LedgerContents | None,
    identity: Mapping[str, Any] | None,
) -> Iterator[str]:
    """Where the files of one run do not say the same."""
    if record is None:
        return
    if identity is not None and identity.get("config_hash") != record.get("config_hash"):
        yield (
            f"record.json is of configuration {record.get('config_hash')}, identity.json of "
            f"{identity.get('config_hash')}: one of them is of another run"
        )
    if ledger is None:
        return
    # A header stands where a run begins: it says nothing of steps that were repeated.
    parts = (section(one, "mechanism") for one in (ledger.header, record))
    under, stated_under = ({k: v for k, v in one.items() if k != "repeated"} for one in parts)
    if under != stated_under:
        yield (
            "ledger.jsonl was spent under another mechanism than record.json states: do not rely "
            "on the guarantee before you know why"
        )
    taken, stated = record["privacy"]["steps_taken"], section(record["privacy"], "epsilon")
    spent, rdp = ledger.epsilon, stated.get("rdp")
    if ledger.steps_spent != taken:
        yield (
            f"ledger.jsonl has {ledger.steps_spent} steps, record.json {taken}: do not rely on the "
            "guarantee before you know why"
        )
    elif (
        isinstance(rdp, float | int)
        and isinstance(spent, float | int)
        and not math.isclose(rdp, spent, rel_tol=1e-6)
    ):
        yield (
            f"ledger.jsonl ends at epsilon {spent}, record.json states {rdp}: do not rely on the "
            "guarantee before you know why"
        )


def _damages(path: Path) -> Iterator[str]:
    """What of a finished run is not what it was."""
    for damage in damages(path, thorough=False):
        yield (
            f"{damage}, though the run was finished: do not rely on it before you know why; "
            "dpft train resume=RUN makes again what can be made again"
        )


def _mapping(file: Path) -> dict[str, Any]:
    value = parse_json(regular(file).read_bytes())
    if not isinstance(value, dict):
        raise ValueError(f"{file} holds a {type(value).__name__}; expected a run's settings")
    return value
