"""How far the runs of a sweep are, from their folders and from its journal, and a table of it.

What is shown is public where a run is private: steps and epsilon come from its ledger, scores from
its record. Of a run without privacy only the number of the last step is read from ``private/``.
"""

import math
import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from rich import box
from rich.live import Live
from rich.table import Table

from dpft.config.errors import DpftError
from dpft.privacy.guarantee import Void, marked, warnings
from dpft.report.console import Console
from dpft.report.terminal import clock, echo
from dpft.runs.atomic import Closing, parse_json
from dpft.runs.finished import is_intact
from dpft.runs.record import read_record
from dpft.sweep import folder as events
from dpft.sweep.folder import Event, SweepFolder, latest_attempt
from dpft.sweep.points import SweepPoint, labels
from dpft.tasks.metrics.shown import HUNDRED, shown
from dpft.tasks.scores import score

WAITING, RUNNING, DONE = "waiting", "running", "done"
FAILED, SKIPPED, STOPPED = "failed", "skipped", "stopped"
# The state of a run that no process works on and that is not finished, by its last event.
_STATES = {
    events.STARTED: STOPPED,
    events.FINISHED: WAITING,  # it was taken away, or is damaged: it is run again
    events.FAILED: FAILED,
    events.DIVERGED: FAILED,
    events.SKIPPED: SKIPPED,
}
_ENDS = (events.FINISHED, *events.FAILURES)
_STYLES = {
    RUNNING: "bold",
    FAILED: "red",
    STOPPED: "yellow",
    SKIPPED: "yellow",
    DONE: "green",
    WAITING: "dim",
}
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
    """Reads a sweep again and again; what is done is read once."""

    def __init__(self, folder: SweepFolder, metric: str | None = None) -> None:
        self._folder = folder
        self._metric = metric or folder.metric()
        self._points = folder.points()
        self._done: dict[str, PointState] = {}

    @property
    def searched(self) -> bool:
        """Whether a sweeper chooses the points as it goes."""
        return self._points is None

    def rows(self) -> list[PointState]:
        """Return every point that is known, in the sweep's order.

        Raises:
            LogError: the journal is damaged.
        """
        history = self._folder.journal.read()
        points: Sequence[SweepPoint] | None = self._points
        if points is None:  # those that started, in the order of their first events
            chosen: dict[str, SweepPoint] = {}
            for event in history:
                if event.digest is not None and event.run is not None:
                    path = self._folder.inside(event.run)
                    private = (path / "ledger.jsonl").exists()
                    chosen[event.digest] = SweepPoint(event.overrides, event.digest, path, private)
            points = [*chosen.values()]
        ever, lately = _by_run(history), _by_run(latest_attempt(history))
        names = labels(point.overrides for point in points)
        return [
            self._row(point, name, lately.get(point.digest, []), ever.get(point.digest, []))
            for point, name in zip(points, names, strict=True)
        ]

    def stray(self) -> list[Event]:
        """Return failures of this attempt that belong to no run, such as impossible settings."""
        attempt = self._folder.journal.attempt()
        return [e for e in attempt if e.event == events.FAILED and not e.digest]

    def _row(
        self, point: SweepPoint, label: str, happened: Sequence[Event], ever: Sequence[Event]
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


class Display(Closing):
    """Shows rows as they change, on standard error so that output can be piped."""

    def __init__(self, lines: bool = True) -> None:
        self._lines = lines
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._printed: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._console.redraws:
            self._live.start()
        return self

    def close(self) -> None:
        """Leave the terminal as it was found."""
        self._live.stop()

    def show(self, rows: Sequence[PointState]) -> None:
        """Redraw the table of what is neither waiting nor done, or print what is new."""
        if self._console.redraws:
            pressing = [row for row in rows if row.state not in (WAITING, DONE)]
            self._live.update(as_table(pressing, summary(rows)), refresh=True)
            return
        for row in rows if self._lines else ():
            if row.state != self._printed.get(row.point.digest, WAITING):
                self._printed[row.point.digest] = row.state
                done = sum(r.state == DONE for r in rows)
                echo(f"[{done}/{len(rows)} done] {row.label}: {row.state}", err=True)


def as_table(rows: Sequence[PointState], title: str) -> Table:
    """Return a table with one row for each point."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("point", overflow="fold")
    table.add_column("state")
    metrics = {row.metric for row in rows if row.metric is not None}
    for name in ("step", "epsilon", metrics.pop() if len(metrics) == 1 else "score", "time"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*cells(row), style=_STYLES[row.state])
    return table


def cells(row: PointState) -> tuple[str, str, str, str, str, str]:
    """Return label, state, steps, epsilon so far, score and time of one point, as text."""
    counted = [str(count) for count in (row.step, row.steps) if count is not None]
    steps = "-" if row.step is None else "/".join(counted)
    unknown = "-" if row.point.private else "none"
    epsilon = unknown if row.epsilon is None else marked(row.epsilon, row.voided_by)
    digits = 2 if row.metric in HUNDRED else 4
    value = "-" if row.score is None else f"{row.score:.{digits}f}"
    return row.label, row.state, steps, epsilon, value, clock(row.seconds)


def summary(rows: Sequence[PointState]) -> str:
    """Return text such as ``12 points: 3 done, 1 running, 8 waiting``."""
    counts = Counter(row.state for row in rows)
    others = [f"{counts[s]} {s}" for s in _STYLES if counts[s] and s != DONE]
    noun = "point" if len(rows) == 1 else "points"
    return f"{len(rows)} {noun}: {', '.join([f'{counts[DONE]} done', *others])}"


def _by_run(history: Sequence[Event]) -> dict[str | None, list[Event]]:
    by_run: dict[str | None, list[Event]] = {}
    for event in history:
        by_run.setdefault(event.digest, []).append(event)
    return by_run


def _state(happened: Sequence[Event]) -> str:
    """Return that of an unfinished run, from what happened since the sweep was started."""
    if not happened:
        return WAITING
    latest = {(event.host, event.pid): event for event in happened}
    if any(event.event == events.STARTED and _alive(event) for event in latest.values()):
        return RUNNING  # even if a second job has left the run to that one
    return _STATES[happened[-1].event]


def _alive(event: Event) -> bool:
    """Return whether the process that wrote it runs; of another machine's that is assumed."""
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
    """Measure from the last start to the end after it."""
    starts = [i for i, event in enumerate(happened) if event.event == events.STARTED]
    if not starts or state == STOPPED:
        return None
    began, *later = happened[starts[-1] :]
    ends = [event.seconds for event in later if event.event in _ENDS]
    if not ends and state == DONE:  # it was killed after its last line
        return None
    return max(0.0, (ends[0] if ends else time.time()) - began.seconds)


def _with_progress(row: PointState) -> PointState:
    """Add the steps so far, and the budget that they have spent."""
    ledger = row.point.path / "ledger.jsonl"
    if ledger.exists():
        first, last = _first_and_last(ledger)
        if not last and ledger.stat().st_size:  # damaged: no bound on what was spent is known
            return replace(row, epsilon=math.inf)
        mechanism = first.get("header", {}).get("mechanism", {})
        void = tuple(warnings(mechanism.get("sampling"), None))
        # The header spends nothing.
        spent = last.get("epsilon_rdp", 0.0 if "header" in last else None)
        step = int(last["step"]) + 1 if "step" in last else 0
        total = mechanism.get("steps")
        return replace(row, step=step, steps=total, epsilon=spent, voided_by=void)
    _, last = _first_and_last(row.point.path / "private" / "metrics.jsonl")
    return replace(row, step=int(last["step"]) + 1) if "step" in last else row


def _first_and_last(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the first and the last whole line of a growing log; empty where there is none.

    A ledger may have many thousands of lines, and is looked at every second.
    """
    try:
        with path.open("rb") as file:
            first = file.readline()
            file.seek(max(0, path.stat().st_size - _TAIL))
            tail = file.read()
    except FileNotFoundError:
        return {}, {}
    last = tail[: tail.rfind(b"\n") + 1].rstrip().rpartition(b"\n")[2]
    return _object(first), _object(last)


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = parse_json(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
