"""What a page of a run is made from, read from its folder; nothing is changed there.

Guarantee: unless `Options.private` is set, no file under the run's ``private/`` is opened, so
nothing that is computed from training records without noise can reach the page.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dpft.config.errors import DpftError
from dpft.privacy.guarantee import Guarantee
from dpft.report.pages.generations import Generations, parsed, read_generations
from dpft.report.pages.target import Target
from dpft.runs.finished import damages
from dpft.runs.ledger import LedgerContents, read_ledger
from dpft.runs.record import read_record
from dpft.runs.wellformed import parse_json

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
        metrics: lines of ``private/metrics.jsonl``; empty unless they were asked for.
        digests: SHA-256 of files, by name.
        problems: what is damaged, for the page.
        label: its settings as typed in a sweep.
        state: what a sweep's journal says of it.
        error: why it failed, if that may be shown.
    """

    name: str
    record: Mapping[str, Any] | None = None
    ledger: LedgerContents | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    generations: Generations | None = None
    metrics: tuple[Mapping[str, Any], ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    label: str | None = None
    state: str | None = None
    error: str | None = None

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
    def mechanism(self) -> Mapping[str, Any] | None:
        """Of the record, or of the ledger while there is no record; None without privacy."""
        if self.record is not None:
            found = self.record.get("mechanism")
        else:
            found = None if self.ledger is None else self.ledger.header.get("mechanism")
        return found if isinstance(found, Mapping) else None

    @property
    def guarantee(self) -> Guarantee | None:
        """What its record states; None while there is none."""
        return None if self.record is None else Guarantee.of_record(self.record)

    @property
    def private(self) -> bool:
        """Whether any guarantee holds, or will."""
        if self.guarantee is not None:
            return self.guarantee.private
        return self.mechanism is not None and bool(self.mechanism.get("private"))

    @property
    def known(self) -> bool:
        """Whether it can be told if the run is private: a run that has just begun tells nothing."""
        return self.record is not None or self.ledger is not None


def gather(target: Target, options: Options, usual_samples: int) -> Gathered:
    """Read one run; what is damaged becomes a line of its ``problems``.

    Args:
        target: where it lies.
        options: decides whether ``private/`` is opened.
        usual_samples: shown unless the options say otherwise.
    """
    reader = _Reader(target)
    path = target.path
    record = reader.of("record.json", lambda: read_record(path))
    ledger = reader.of("ledger.jsonl", lambda: read_ledger(path / "ledger.jsonl"))
    identity = reader.of("identity.json", lambda: _mapping(path / "identity.json"))
    config: Any = (record or identity or {}).get("config")
    config = config if isinstance(config, Mapping) else {}
    reader.compare(record, ledger, identity)
    reader.look_for_damage()
    return Gathered(
        target.name,
        record,
        ledger,
        config,
        reader.generations(record, config, options, usual_samples),
        reader.metrics() if options.private else (),
        reader.digests(),
        tuple(reader.problems),
        target.label,
        target.state,
        target.error if options.private else None,
    )


class _Reader:
    def __init__(self, target: Target) -> None:
        self.path = target.path
        self.problems: list[str] = []

    def of(self, name: str, read: Callable[[], T]) -> T | None:
        """What ``read`` returns; None if the file is not there or is damaged."""
        if not (self.path / name).exists():
            return None
        try:
            return read()
        except (DpftError, OSError, ValueError) as error:
            self.problems.append(self._told(error))
            return None

    def compare(
        self,
        record: Mapping[str, Any] | None,
        ledger: LedgerContents | None,
        identity: Mapping[str, Any] | None,
    ) -> None:
        """Files of one run must say the same."""
        if record is None:
            return
        if identity is not None and identity.get("config_hash") != record.get("config_hash"):
            self.problems.append(
                f"record.json is of configuration {record.get('config_hash')}, identity.json of "
                f"{identity.get('config_hash')}: one of them is of another run"
            )
        privacy = record["privacy"]
        if ledger is None:
            return
        if ledger.steps_spent != privacy["steps_taken"]:
            self.problems.append(
                f"ledger.jsonl has {ledger.steps_spent} steps, record.json "
                f"{privacy['steps_taken']}: do not rely on the guarantee before you know why"
            )
            return
        stated = (privacy["epsilon"] or {}).get("rdp")
        spent = ledger.entries[-1].get("epsilon_rdp") if ledger.entries else None
        if not (isinstance(stated, float | int) and isinstance(spent, float | int)):
            return
        if not math.isclose(stated, spent, rel_tol=1e-6):
            self.problems.append(
                f"ledger.jsonl ends at epsilon {spent}, record.json states {stated}: do not rely "
                "on the guarantee before you know why"
            )

    def look_for_damage(self) -> None:
        """What of a finished run is not what it was."""
        for damage in damages(self.path, thorough=False):
            self.problems.append(
                f"{damage}, though the run was finished: do not rely on it before you know why; "
                "dpft train resume=RUN makes again what can be made again"
            )

    def generations(
        self,
        record: Mapping[str, Any] | None,
        config: Mapping[str, Any],
        options: Options,
        usual: int,
    ) -> Generations | None:
        try:
            found, problems = read_generations(
                self.path, record, config, options.private, options.samples, usual
            )
        except (OSError, ValueError) as error:
            self.problems.append(f"generations: {self._told(error)}")
            return None
        self.problems += map(self._told, problems)
        return found

    def metrics(self) -> tuple[Mapping[str, Any], ...]:
        """The lines of ``private/metrics.jsonl``; one that a kill has torn is no problem."""
        name = "private/metrics.jsonl"
        if not (self.path / name).exists():
            return ()
        try:
            data = (self.path / name).read_bytes()
        except OSError as error:
            self.problems.append(self._told(error))
            return ()
        found, bad = [], []
        for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
            value = parsed(line)
            if value is not None and isinstance(value.get("step"), int):
                found.append(value)
            else:
                bad.append(number)
        if bad:
            self.problems.append(
                f"{name}: {len(bad)} lines are no metrics of a step (the first is line {bad[0]}); "
                "they are left out"
            )
        return tuple(found)

    def digests(self) -> dict[str, str]:
        found = {}
        for name in ("record.json", "ledger.jsonl"):
            file = self.path / name
            if file.is_file():
                try:
                    found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
                except OSError as error:
                    self.problems.append(self._told(error))
        return found

    def _told(self, error: Exception | str) -> str:
        """The message without the folders of this machine."""
        said = str(error)
        for folder in (self.path, self.path.absolute(), self.path.resolve()):
            said = said.replace(f"{folder}/", "").replace(str(folder), "this run")
        return said


def _mapping(file: Path) -> dict[str, Any]:
    value = parse_json(file.read_bytes())
    if not isinstance(value, dict):
        raise ValueError(f"{file} holds a {type(value).__name__}; expected a run's settings")
    return value
