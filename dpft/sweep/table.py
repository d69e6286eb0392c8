"""A sweep on the terminal: redrawn while it runs, or lines where nothing can be redrawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Self

from rich import box
from rich.live import Live
from rich.table import Table

from dpft.privacy.guarantee import marked
from dpft.report.console import Console
from dpft.report.terminal import clock, echo
from dpft.runs.atomic import Closing
from dpft.sweep import state
from dpft.sweep.state import PointState
from dpft.tasks.metrics.shown import HUNDRED

# Which rows are shown first where not all fit, and how.
_STYLES = {
    state.RUNNING: "bold",
    state.FAILED: "red",
    state.STOPPED: "yellow",
    state.SKIPPED: "yellow",
    state.DONE: "green",
    state.WAITING: "dim",
}
_URGENCY = tuple(_STYLES)
# Lines of a terminal that the table's head and frame take.
_FRAME = 7


class Display(Closing):
    """Shows rows as they change, on standard error so that output can be piped.

    Args:
        lines: print what is new where nothing can be redrawn, as in a file.
    """

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
        """Redraw the table, or print what is new."""
        if self._console.redraws:
            fitting = shortened(rows, self._console.height - _FRAME)
            self._live.update(as_table(fitting, summary(rows)), refresh=True)
            return
        for row in rows if self._lines else ():
            if row.state != self._printed.get(row.point.digest, state.WAITING):
                self._printed[row.point.digest] = row.state
                done = sum(r.state == state.DONE for r in rows)
                echo(f"[{done}/{len(rows)} done] {row.label}: {row.state}", err=True)


def as_table(rows: Sequence[PointState], title: str) -> Table:
    """One row a point."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("point", overflow="fold")
    table.add_column("state")
    for name in ("step", "epsilon", _metric(rows), "time"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*cells(row), style=_STYLES[row.state])
    return table


def cells(row: PointState) -> tuple[str, str, str, str, str, str]:
    """Label, state, steps, epsilon so far, score and time of one point, as text."""
    counted = [str(count) for count in (row.step, row.steps) if count is not None]
    steps = "-" if row.step is None else "/".join(counted)
    unknown = "-" if row.point.private else "none"
    epsilon = unknown if row.epsilon is None else marked(row.epsilon, row.voided_by)
    digits = 2 if row.metric in HUNDRED else 4
    value = "-" if row.score is None else f"{row.score:.{digits}f}"
    return row.label, row.state, steps, epsilon, value, clock(row.seconds)


def summary(rows: Sequence[PointState]) -> str:
    """``12 points: 3 done, 1 running, 8 waiting``."""
    counts = Counter(row.state for row in rows)
    others = [f"{counts[s]} {s}" for s in _URGENCY if counts[s] and s != state.DONE]
    noun = "point" if len(rows) == 1 else "points"
    return f"{len(rows)} {noun}: {', '.join([f'{counts[state.DONE]} done', *others])}"


def shortened(rows: Sequence[PointState], lines: int) -> list[PointState]:
    """The most urgent rows, in the sweep's order; among finished ones the latest."""

    def urgency(place: int) -> tuple[int, int]:
        now = rows[place].state
        return _URGENCY.index(now), -place if now == state.DONE else place

    kept = sorted(range(len(rows)), key=urgency)[: max(1, lines)]
    return [rows[place] for place in sorted(kept)]


def _metric(rows: Sequence[PointState]) -> str:
    names = {row.metric for row in rows if row.metric is not None}
    return names.pop() if len(names) == 1 else "score"
