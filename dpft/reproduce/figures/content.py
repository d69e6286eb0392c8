"""The content of a figure, before it is drawn: the same numbers become picture and CSV."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from dpft.report.text_table import as_csv

# How a series is drawn: joined points, points, a histogram's outline, one horizontal line, or
# vertical lines (`FigurePoint.x`).
Look = Literal["line", "points", "steps", "level", "verticals"]
FIELDS = ("panel", "series", "origin", "x", "y", "deviation", "label", "marks", "source")


class Origin(StrEnum):
    """The origin of numbers; shown in the legend and the CSV."""

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
    """Points in the order of the line."""

    label: str
    points: tuple[FigurePoint, ...]
    origin: Origin
    look: Look = "line"

    @property
    def legend(self) -> str:
        """``epsilon 3, printed``."""
        return self.label if self.origin is Origin.COMPUTED else f"{self.label}, {self.origin}"


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
    def points(self) -> list[FigurePoint]:
        """The points of all series."""
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
    def points(self) -> list[FigurePoint]:
        """The points of all cells."""
        return [point for row in self.cells for point in row if point is not None]


@dataclass(frozen=True)
class Content:
    """The content of a figure: panels in rows of at most ``columns``, and sentences below them."""

    panels: Sequence[Panel | Heat]
    caption: Sequence[str]
    columns: int = 3

    @property
    def csv(self) -> str:
        """Every number that is drawn, one line each, below a line of `FIELDS`."""
        rows: list[Sequence[object]] = [FIELDS]
        for one in self.panels:
            if isinstance(one, Panel):
                found = [
                    (series.label, series.origin, one.x.value(p.x), one.y.value(p.y), p)
                    for series in one.series
                    for p in series.points
                ]
            else:
                found = [
                    (str(one.y.value(i)), one.origin, one.x.value(p.x), p.y, p)
                    for i, row in enumerate(one.cells)
                    for p in row
                    if p is not None
                ]
            for *place, p in found:
                error = "" if p.error is None else p.error
                rows.append((one.title, *place, error, p.label, p.marks, p.source))
        return as_csv(rows)
