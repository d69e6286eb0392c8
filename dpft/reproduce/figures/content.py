"""What a figure shows, before it is drawn: the same numbers become picture and CSV."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

# How a series is drawn: joined points, points, a histogram's outline, one horizontal line, or
# vertical lines (`Point.x`).
Look = Literal["line", "points", "steps", "level", "verticals"]
FIELDS = ("panel", "series", "origin", "x", "y", "deviation", "label", "marks", "source")
CsvRow = tuple[str | float, ...]


class Origin(StrEnum):
    """Where numbers come from; shown in the legend and the CSV."""

    PRINTED = "printed"
    OURS = "ours"
    COMPUTED = "computed"


@dataclass(frozen=True)
class FigurePoint:
    """One number, with the ``error`` of one standard deviation.

    ``x`` is the index of a name on an axis with names, NaN for a horizontal line. The letters
    ``marks`` of `dpft.reproduce.tables.verdicts` follow the ``label`` next to it. ``source`` is a
    run's folder or a benchmark's file.
    """

    x: float
    y: float
    error: float | None = None
    label: str = ""
    marks: str = ""
    source: str = ""


@dataclass(frozen=True)
class Series:
    """Points in the order of the line; with ``legend_origin`` the legend names the origin, too."""

    label: str
    points: tuple[FigurePoint, ...]
    origin: Origin
    look: Look = "line"
    legend_origin: bool = False

    @property
    def legend(self) -> str:
        """``epsilon 3, printed``."""
        return f"{self.label}, {self.origin}" if self.legend_origin else self.label


@dataclass(frozen=True)
class Axis:
    """An axis; where it has no numbers, ``names`` are those of its positions 0, 1, ...."""

    label: str
    scale: Literal["linear", "log", "log2"] = "linear"
    names: tuple[str, ...] = ()
    from_zero: bool = False

    def value(self, x: float) -> str | float:
        """Return the name of a position, where positions have names; empty for NaN."""
        if math.isnan(x):
            return ""
        return self.names[int(x)] if self.names else x


@dataclass(frozen=True)
class Panel:
    """Series over two axes."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]

    @property
    def rows(self) -> list[CsvRow]:
        return [
            _row(self.title, one.label, one.origin, self.x.value(p.x), self.y.value(p.y), p)
            for one in self.series
            for p in one.points
        ]

    @property
    def points(self) -> list[FigurePoint]:
        return [point for one in self.series for point in one.points]


@dataclass(frozen=True)
class Heat:
    """Numbers as colours; each cell shows its number with its marks below.

    ``cells`` are by row, from the top, of one length; None is left blank. ``limits`` are of the
    colours.
    """

    title: str
    x: Axis
    y: Axis
    label: str
    cells: tuple[tuple[FigurePoint | None, ...], ...]
    origin: Origin = Origin.OURS
    show_numbers: bool = True
    decimals: int = 1
    limits: tuple[float, float] | None = None

    @property
    def rows(self) -> list[CsvRow]:
        return [
            _row(self.title, self.y.value(i), self.origin, self.x.value(p.x), p.y, p)
            for i, row in enumerate(self.cells)
            for p in row
            if p is not None
        ]

    @property
    def points(self) -> list[FigurePoint]:
        return [point for row in self.cells for point in row if point is not None]


@dataclass(frozen=True)
class Content:
    """What a figure shows: panels in rows of at most ``columns``, and sentences below them."""

    panels: Sequence[Panel | Heat]
    caption: Sequence[str]
    columns: int = 3

    @property
    def csv(self) -> str:
        """Every number that is drawn, one line each, below a line of `FIELDS`."""
        out = io.StringIO()
        rows = [row for panel in self.panels for row in panel.rows]
        csv.writer(out, lineterminator="\n").writerows([FIELDS, *rows])
        return out.getvalue()


def _row(panel: str, series: str | float, origin: Origin, x: Any, y: Any, p: FigurePoint) -> CsvRow:
    error = "" if p.error is None else p.error
    return (panel, series, str(origin), x, y, error, p.label, p.marks, p.source)
