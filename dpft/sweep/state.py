"""The progress of a sweep's runs, from their folders and from its journal, and a table of it.

Only public figures of private runs are shown: steps and epsilon come from the ledger, scores from
the record. Of a run without privacy only the number of the last step is read from ``private/``.
"""

import math
import os
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
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
_STYLES = {
    **{RUNNING: "bold", FAILED: "red", STOPPED: "yellow"},
    **{SKIPPED: "yellow", DONE: "green", WAITING: "dim"},
}
_TAIL = 1 << 16  # bytes: a line of a ledger or of the metrics is far shorter


@dataclass(frozen=True)
class PointState:
    """One point of a sweep."""

    label: str  # the settings that not all points have
    point: SweepPoint  # its settings and where it runs
    state: str  # waiting, running, done, failed, skipped or stopped (killed, to be continued)
    step: int | None = None  # steps taken, or spent where the run is private
    steps: int | None = None  # in all, where they are known
    # Spent so far, by RDP; None for runs without privacy, infinite if the ledger's end is damaged.
    epsilon: float | None = None
    voided_by: tuple[Void, ...] = ()
    metric: str | None = None  # the name of `score`
    score: float | None = None  # of a finished run
    seconds: float | None = None  # of its steps if it is done, since its job began if it runs
    error: str | None = None  # why it failed
    diverged: bool = False  # it failed since its weights were not finite


class States:
    """Reads a sweep repeatedly; runs that are done are read once."""

    def __init__(self, folder: SweepFolder, metric: str | None = None) -> None:
        self._folder = folder
        self._metric = metric or folder.metric()
        self._points = folder.points()
        self._done: dict[str, PointState] = {}

    @property
    def searched(self) -> bool:
        """True if a sweeper chooses the points while it runs."""
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
        by_run: dict[str | None, list[Event]] = {}
        for event in latest_attempt(history):
            by_run.setdefault(event.digest, []).append(event)
        names = labels(point.overrides for point in points)
        return [
            self._row(point, name, by_run.get(point.digest, []))
            for point, name in zip(points, names, strict=True)
        ]

    def _row(self, point: SweepPoint, label: str, happened: Sequence[Event]) -> PointState:
        if point.digest not in self._done and is_intact(point.path, point.digest):
            self._done[point.digest] = self._finished(PointState(label, point, DONE))
        if point.digest in self._done:
            row = replace(self._done[point.digest], label=label)
        else:
            row = _with_progress(PointState(label, point, _state(happened)))
        if row.state == RUNNING:
            began = max(e.time for e in happened if e.event == events.STARTED)
            return replace(row, seconds=(datetime.now(UTC) - began).total_seconds())
        last = happened[-1] if happened else Event(events.FINISHED)
        if last.event in events.FAILURES or row.state == SKIPPED:
            diverged = row.state == FAILED and last.event == events.DIVERGED
            row = replace(row, error=row.error or last.error, diverged=diverged)
        return row

    def _finished(self, row: PointState) -> PointState:
        try:
            record = read_record(row.point.path)
            training, private = record["training"], record["privacy"]
            row = replace(
                row,
                step=training["steps"],
                steps=training["steps"],
                epsilon=private["stated"],
                seconds=training["seconds"],
                voided_by=tuple(private["voided_by"]),
            )
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


def _state(happened: Sequence[Event]) -> str:
    """Return the state of an unfinished run, from its events since the sweep was started."""
    if not happened:
        return WAITING
    latest = {(event.host, event.pid): event for event in happened}
    if any(event.event == events.STARTED and _alive(event) for event in latest.values()):
        return RUNNING  # even if a second job has left the run to that one
    return _STATES[happened[-1].event]


def _alive(event: Event) -> bool:
    """Return whether the process that wrote it runs; assumed on other machines."""
    if event.host != socket.gethostname():
        return True
    try:
        os.kill(event.pid, 0)
        # A dead process keeps its number until its parent has waited for it.
        status = Path(f"/proc/{event.pid}/stat").read_text(errors="replace")
    except ProcessLookupError:
        return False
    except OSError:  # another user's process, or a system without /proc
        return True
    return status.rpartition(")")[2].split()[:1] != ["Z"]


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
    found: list[dict[str, Any]] = []
    for line in (first, last):
        try:
            value = parse_json(line)
        except ValueError:
            value = None
        found.append(value if isinstance(value, dict) else {})
    return found[0], found[1]
