"""How far a sweep is, read from its runs' folders and from its journal; nothing is changed.

What is shown is public where a run is private: steps and epsilon come from its ledger, scores from
its record. Of a run without privacy only the number of the last step is read from ``private/``.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpft.config.errors import DpftError
from dpft.privacy.guarantee import Void, warnings
from dpft.runs.atomic import parse_json
from dpft.runs.finished import is_intact
from dpft.runs.record import read_record
from dpft.sweep import journal as events
from dpft.sweep.folder import SweepFolder
from dpft.sweep.journal import Event, Journal, latest_attempt
from dpft.sweep.points import SweepPoint, labels
from dpft.tasks.metrics.shown import shown
from dpft.tasks.scores import score

WAITING, RUNNING, DONE = "waiting", "running", "done"
FAILED, SKIPPED, STOPPED = "failed", "skipped", "stopped"
# The state of a run that nobody works on and that is not finished, by its last event.
_STATES = {
    events.STARTED: STOPPED,
    events.FINISHED: WAITING,  # it was taken away, or is damaged: it is run again
    events.FAILED: FAILED,
    events.DIVERGED: FAILED,
    events.SKIPPED: SKIPPED,
}
_ENDS = (events.FINISHED, *events.FAILURES)
# A line of a ledger or of the metrics is far shorter.
_TAIL = 1 << 16


@dataclass(frozen=True)
class PointState:
    """One point of a sweep.

    Attributes:
        label: what tells it from the others.
        point: its settings and where it runs.
        state: waiting, running, done, failed, skipped or stopped (killed, to be continued).
        step: steps taken, or spent where the run is private.
        steps: steps in all, where they are known.
        epsilon: spent so far, by RDP; None for runs without privacy, infinite if the ledger is
            damaged at its end.
        metric: the name of ``score``.
        score: of a finished run.
        seconds: since its job began, or from there to its end.
        error: why it failed.
        diverged: it failed since its weights were not finite.
    """

    label: str
    point: SweepPoint
    state: str
    step: int | None = None
    steps: int | None = None
    epsilon: float | None = None
    voided_by: tuple[Void, ...] = ()
    metric: str | None = None
    score: float | None = None
    seconds: float | None = None
    error: str | None = None
    diverged: bool = False


class States:
    """Reads a sweep again and again; what is done is read once.

    Args:
        folder: of the sweep.
        metric: the score to show; None: the sweep's own.
    """

    def __init__(self, folder: SweepFolder, metric: str | None = None) -> None:
        self._folder = folder
        self._metric = metric or folder.metric()
        self._points = folder.points()
        self._journal = Journal(folder.journal)
        self._done: dict[str, PointState] = {}

    def rows(self) -> list[PointState]:
        """Every point that is known, in the sweep's order.

        Raises:
            LogError: the journal is damaged.
        """
        history = self._journal.read()
        points = self._chosen(history) if self._points is None else self._points
        ever, lately = _by_run(history), _by_run(latest_attempt(history))
        names = labels(point.overrides for point in points)
        return [
            self._row(point, name, lately.get(point.digest, []), ever.get(point.digest, []))
            for point, name in zip(points, names, strict=True)
        ]

    def former(self) -> list[PointState]:
        """Runs that earlier starts have begun and that are no points any more, by their folders.

        The same words give other points where a config of one's own or a default has changed. What
        those runs have spent counts all the same.

        Raises:
            LogError: the journal is damaged.
        """
        if self._points is None:
            return []
        known = {point.digest for point in self._points}
        begun = self._chosen(self._journal.read())
        return [self._row(one, str(one.path)) for one in begun if one.digest not in known]

    @property
    def searched(self) -> bool:
        """Whether a sweeper chooses the points as it goes."""
        return self._points is None

    def stray(self) -> list[Event]:
        """Failures of this attempt that belong to no run, such as impossible settings."""
        return [e for e in self._journal.attempt() if e.event == events.FAILED and not e.digest]

    def _chosen(self, history: Sequence[Event]) -> list[SweepPoint]:
        """The points that were begun, in the order of their first events."""
        chosen: dict[str, SweepPoint] = {}
        for event in history:
            if event.digest is not None and event.run is not None:
                path = self._folder.inside(event.run)
                private = (path / "ledger.jsonl").exists()
                chosen[event.digest] = SweepPoint(event.overrides, event.digest, path, private)
        return list(chosen.values())

    def _row(
        self,
        point: SweepPoint,
        label: str,
        happened: Sequence[Event] = (),
        ever: Sequence[Event] = (),
    ) -> PointState:
        if point.digest not in self._done and is_intact(point.path, point.digest):
            self._done[point.digest] = self._finished(PointState(label, point, DONE))
        if point.digest in self._done:
            row = replace(self._done[point.digest], label=label)
        else:
            row = _with_progress(PointState(label, point, _state(happened)))
        last = happened[-1] if happened else Event(events.FINISHED)
        if last.event in events.FAILURES or row.state == SKIPPED:
            diverged = row.state == FAILED and last.event == events.DIVERGED
            row = replace(row, error=row.error or last.error, diverged=diverged)
        # What is done took its time, whichever start of the sweep that was in.
        return replace(row, seconds=_seconds(row.state, ever if row.state == DONE else happened))

    def _finished(self, row: PointState) -> PointState:
        try:
            record = read_record(row.point.path)
            taken, private = record["training"]["steps"], record["privacy"]
            row = replace(row, step=taken, steps=taken, epsilon=private["stated"])
            row = replace(row, voided_by=tuple(private["voided_by"]))
            if (record.get("audit") or {}).get("refuted"):
                error = "the audit refutes its guarantee; do not release the model"
                return replace(row, error=error)
            metric, value = score(record, self._metric)
            if value is not None:
                section = record["scores"][record["config"]["decode"]["split"]]
                value = shown(metric, value, section.get("signature"))
        except DpftError as error:
            return replace(row, error=str(error))
        return replace(row, metric=metric, score=value)


def _by_run(history: Sequence[Event]) -> dict[str | None, list[Event]]:
    by_run: dict[str | None, list[Event]] = {}
    for event in history:
        by_run.setdefault(event.digest, []).append(event)
    return by_run


def _state(happened: Sequence[Event]) -> str:
    """Of a run that is not finished, from what happened to it since the sweep was started."""
    if not happened:
        return WAITING
    latest = {(event.host, event.pid): event for event in happened}
    if any(event.event == events.STARTED and _alive(event) for event in latest.values()):
        return RUNNING  # even if a second job has left the run to that one
    return _STATES[happened[-1].event]


def _alive(event: Event) -> bool:
    """Whether the process that wrote it is there; of another machine's that is assumed."""
    if event.host != socket.gethostname():
        return True
    try:
        os.kill(event.pid, 0)
        # A dead process that its parent has not asked about yet still has its number.
        status = Path(f"/proc/{event.pid}/stat").read_text(errors="replace")
    except ProcessLookupError:
        return False
    except OSError:  # another user's process, or a system without /proc
        return True
    return status.rpartition(")")[2].split()[:1] != ["Z"]


def _seconds(state: str, happened: Sequence[Event]) -> float | None:
    """From the last start to the end that followed it; a start that only finds it done is none."""
    starts = [i for i, event in enumerate(happened) if event.event == events.STARTED]
    if not starts or state == STOPPED:
        return None
    began, *later = happened[starts[-1] :]
    ends = [event.seconds for event in later if event.event in _ENDS]
    if not ends and state == DONE:  # it was killed behind its last line
        return None
    return max(0.0, (ends[0] if ends else time.time()) - began.seconds)


def _with_progress(row: PointState) -> PointState:
    """With the steps so far, and the budget that they have spent."""
    ledger = row.point.path / "ledger.jsonl"
    if ledger.exists():
        first, last = _ends(ledger)
        if not last and ledger.stat().st_size:  # damaged: what was spent has no bound that is known
            return replace(row, epsilon=math.inf)
        mechanism = first.get("header", {}).get("mechanism", {})
        void = tuple(warnings(mechanism.get("sampling"), None))
        # The header spends nothing.
        spent = last.get("epsilon_rdp", 0.0 if "header" in last else None)
        step = int(last["step"]) + 1 if "step" in last else 0
        total = mechanism.get("steps")
        return replace(row, step=step, steps=total, epsilon=spent, voided_by=void)
    _, last = _ends(row.point.path / "private" / "metrics.jsonl")
    return replace(row, step=int(last["step"]) + 1) if "step" in last else row


def _ends(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first and the last whole line of a growing log; empty where there is none.

    A ledger may have many thousands of lines, and is looked at every second.
    """
    try:
        with path.open("rb") as file:
            first = file.readline()
            file.seek(max(0, path.stat().st_size - _TAIL))
            tail = file.read()
    except FileNotFoundError:
        return {}, {}
    return _object(first), _object(tail[: tail.rfind(b"\n") + 1].rstrip().rpartition(b"\n")[2])


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = parse_json(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
