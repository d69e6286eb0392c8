"""How far a sweep is, read from its journal and from its run directories; nothing is changed.

What is shown is public where a run is private: steps and epsilon come from its ledger, scores from
its record. Of a run without privacy only the number of the last step is read from ``private/``.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpft.config.errors import DpftError
from dpft.runs.finished import is_finished
from dpft.runs.record import read_record
from dpft.runs.shown import stated
from dpft.runs.wellformed import parse_json
from dpft.sweep import journal as events
from dpft.sweep.folder import SweepFolder
from dpft.sweep.journal import Event, Journal, latest_attempt
from dpft.sweep.points import Point, labels
from dpft.tasks.scores import score

WAITING, RUNNING, DONE = "waiting", "running", "done"
FAILED, SKIPPED, STOPPED = "failed", "skipped", "stopped"
_ENDS = (events.FINISHED, events.FAILED, events.DIVERGED)
# A line of a ledger or of the metrics is far shorter.
_TAIL = 1 << 16


@dataclass(frozen=True)
class Row:
    """One point of a sweep.

    Attributes:
        label: what tells it from the others.
        point: its settings and where it runs.
        state: waiting, running, done, failed, skipped or stopped (killed, to be continued).
        step: steps taken, or spent where the run is private.
        steps: steps in all, where they are known.
        epsilon: spent so far, by RDP; None for runs without privacy.
        metric: the name of ``score``.
        score: of a finished run.
        seconds: since its job began, or from there to its end.
        error: why it failed.
        diverged: it failed since its weights were not finite.
    """

    label: str
    point: Point
    state: str
    step: int | None = None
    steps: int | None = None
    epsilon: float | None = None
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
        self._done: dict[str, Row] = {}

    def rows(self) -> list[Row]:
        """Every point that is known, in the sweep's order.

        Raises:
            ConfigError: the journal is damaged.
        """
        happened = self._journal.read()
        points = self._points if self._points is not None else _met(happened, self._folder)
        names = labels(point.overrides for point in points)
        now: dict[str, list[Event]] = {}
        for event in latest_attempt(happened):
            now.setdefault(event.digest or "", []).append(event)
        return [
            self._row(point, name, now.get(point.digest, []))
            for point, name in zip(points, names, strict=True)
        ]

    @property
    def searched(self) -> bool:
        """Whether a sweeper chooses the points as it goes."""
        return self._points is None

    def stray(self) -> list[Event]:
        """Failures of this attempt that belong to no run, such as impossible settings."""
        return [e for e in self._journal.attempt() if e.event == events.FAILED and not e.digest]

    def _row(self, point: Point, label: str, happened: Sequence[Event]) -> Row:
        row = self._done.get(point.digest)
        if row is None and is_finished(point.path, point.digest):
            row = self._done[point.digest] = self._finished(Row(label, point, DONE))
        if row is not None:
            row = replace(row, label=label)
        else:
            diverged = bool(happened) and happened[-1].event == events.DIVERGED
            row = _unfinished(Row(label, point, _state(happened), diverged=diverged))
        error = row.error or _error(row.state, happened)
        return replace(row, seconds=_seconds(row, happened), error=error)

    def _finished(self, row: Row) -> Row:
        try:
            record = read_record(row.point.path)
        except DpftError as error:
            return replace(row, error=str(error))
        taken, privacy = record["training"]["steps"], record["privacy"]
        row = replace(row, step=taken, steps=taken, epsilon=privacy and stated(privacy["epsilon"]))
        if (record.get("audit") or {}).get("refuted"):
            return replace(row, error="the audit refutes its guarantee; do not release the model")
        try:
            metric, value = score(record, self._metric)
        except DpftError as error:
            return replace(row, error=str(error))
        return replace(row, metric=metric, score=value)


def _met(happened: Sequence[Event], folder: SweepFolder) -> list[Point]:
    """The points that a sweeper has chosen so far, in its order."""
    found: dict[str, Point] = {}
    for event in happened:
        if event.digest is not None and event.run is not None:
            path = folder.inside(event.run)
            private = (path / "ledger.jsonl").exists()
            found[event.digest] = Point(event.overrides, event.digest, path, private)
    return list(found.values())


def _state(happened: Sequence[Event]) -> str:
    """Of a run that is not finished, from what happened to it since the sweep was started."""
    # A second job for a run that is in use says nothing of the run, not even that it started.
    told: list[Event] = []
    for event in happened:
        if event.event != events.IN_USE:
            told.append(event)
        elif told and told[-1].event == events.STARTED and _same_process(told[-1], event):
            told.pop()
    if not told:
        return SKIPPED if happened else WAITING
    last = told[-1]
    if last.event == events.STARTED:
        return RUNNING if _alive(last) else STOPPED
    states = {
        events.FAILED: FAILED,
        events.DIVERGED: FAILED,
        events.SKIPPED: SKIPPED,
        events.STOPPED: STOPPED,
    }
    return states.get(last.event, WAITING)  # finished, and then taken away


def _same_process(one: Event, other: Event) -> bool:
    return (one.host, one.pid) == (other.host, other.pid)


def _alive(event: Event) -> bool:
    """Whether the process that wrote it is there; on another machine that cannot be told."""
    if event.host != socket.gethostname():
        return True
    try:
        os.kill(event.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:  # a dead process that nobody has asked about yet still has its number
        told = Path(f"/proc/{event.pid}/stat").read_text(errors="replace")
    except OSError:
        return True
    return told.rpartition(")")[2].split()[:1] != ["Z"]


def _error(state: str, happened: Sequence[Event]) -> str | None:
    if not happened or (happened[-1].event == events.IN_USE and state != SKIPPED):
        return None
    return happened[-1].error


def _seconds(row: Row, happened: Sequence[Event]) -> float | None:
    starts = [event for event in happened if event.event == events.STARTED]
    if not starts or row.state == STOPPED:
        return None
    later = [e for e in happened if e.event in _ENDS]
    end = later[-1].seconds if later else time.time()
    return max(0.0, end - starts[-1].seconds)


def _unfinished(row: Row) -> Row:
    """Steps so far, and the budget that they have spent."""
    ledger = row.point.path / "ledger.jsonl"
    if ledger.exists():
        last, header = _last_line(ledger), _first_line(ledger).get("header", {})
        total = header.get("mechanism", {}).get("steps")
        if "step" not in last:  # the header alone: nothing is spent
            return replace(row, step=0, steps=total, epsilon=0.0)
        spent = last.get("epsilon_rdp")
        return replace(row, step=int(last["step"]) + 1, steps=total, epsilon=spent)
    last = _last_line(row.point.path / "private" / "metrics.jsonl")
    return replace(row, step=int(last["step"]) + 1) if "step" in last else row


def _first_line(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return _mapping(file.readline())


def _last_line(path: Path) -> dict[str, Any]:
    """The last whole line; nothing where there is none yet."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return {}
    return next((_mapping(line) for line in reversed(lines) if line.endswith(b"\n")), {})


def _mapping(line: bytes) -> dict[str, Any]:
    try:
        value = parse_json(line)
    except ValueError:
        return {}
    return dict(value) if isinstance(value, Mapping) else {}
