"""What a figure shows, before it is drawn: the same numbers become picture and CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

# How a series is drawn: joined points, points, a histogram's outline, one horizontal line, or
# vertical lines (`Point.x`).
Look = Literal["line", "points", "steps", "level", "verticals"]
Scale = Literal["linear", "log", "log2"]


class Origin(StrEnum):
    """Where numbers come from; shown in the legend and the CSV."""

    PRINTED = "printed"
    OURS = "ours"
    COMPUTED = "computed"


@dataclass(frozen=True)
class Point:
    """One number.

    Attributes:
        x: place; for an axis with names, the index of one.
        y: value.
        error: one standard deviation, or None.
        label: written beside it.
        marks: letters of `dpft.reproduce.tables.marks`, written after the label.
        source: what it is made from: a run's folder, a benchmark's file.
    """

    x: float
    y: float
    error: float | None = None
    label: str = ""
    marks: str = ""
    source: str = ""

    @property
    def beside(self) -> str:
        """What is written beside it."""
        return f"{self.label} {self.marks}".strip()


@dataclass(frozen=True)
class Series:
    """Points that belong together.

    Attributes:
        label: for the legend, without the origin.
        points: in the order of the line.
        origin: see `Origin`.
        look: see `Look`.
        unsaid: whether the legend leaves the origin out.
    """

    label: str
    points: tuple[Point, ...]
    origin: Origin
    look: Look = "line"
    unsaid: bool = False

    @property
    def legend(self) -> str:
        """``epsilon 3, printed``."""
        return self.label if self.unsaid else f"{self.label}, {self.origin}"


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        label: with the unit.
        scale: how numbers are spread.
        names: of its places 0, 1, ..., where it has no numbers.
        from_zero: whether it begins at zero.
    """

    label: str
    scale: Scale = "linear"
    names: tuple[str, ...] = ()
    from_zero: bool = False


@dataclass(frozen=True)
class Panel:
    """Series over two axes."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Heat:
    """Numbers as colours.

    Attributes:
        title: above it.
        x: with the names of the columns, unless there are too many to name.
        y: with the names of the rows, from the top.
        label: of the colours, with the unit.
        values: by row, of one length; None is left blank.
        numbers: whether each cell shows its number.
        decimals: of these.
        marks: letters by row, written under the number; empty: none.
        deviations: of the numbers, by row; empty: none is known.
        sources: of the numbers, by row; empty: none is named.
        origin: see `Origin`.
        lines: places between columns and between rows where the paper divides the map.
        limits: of the colours; None: of the values.
    """

    title: str
    x: Axis
    y: Axis
    label: str
    values: tuple[tuple[float | None, ...], ...]
    numbers: bool = True
    decimals: int = 1
    marks: tuple[tuple[str, ...], ...] = ()
    deviations: tuple[tuple[float | None, ...], ...] = ()
    sources: tuple[tuple[str, ...], ...] = ()
    origin: Origin = Origin.OURS
    lines: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Content:
    """A figure.

    Attributes:
        name: as it is typed, ``li2022/6``.
        title: in our words.
        source: the paper's figure.
        panels: in reading order.
        caption: sentences that must be read with it.
        columns: panels side by side; None: up to three.
        private: whether it shows noiseless figures of training records.
    """

    name: str
    title: str
    source: str
    panels: tuple[Panel | Heat, ...]
    caption: tuple[str, ...]
    columns: int | None = None
    private: bool = False

    @property
    def stem(self) -> str:
        """Of its files: ``li2022-6``."""
        return self.name.replace("/", "-")


def rows(content: Content) -> list[dict[str, str | float]]:
    """Every number that is drawn, one mapping each, with the same keys.

    A place without a number, as of a horizontal line, is empty.
    """
    out: list[dict[str, str | float]] = []
    for panel in content.panels:
        if isinstance(panel, Heat):
            out += _heat_rows(panel)
            continue
        for series in panel.series:
            for point in series.points:
                out.append(
                    {
                        "panel": panel.title,
                        "series": series.label,
                        "origin": str(series.origin),
                        "x": _place(panel.x, point.x),
                        "y": _place(panel.y, point.y),
                        "deviation": "" if point.error is None else point.error,
                        "label": point.label,
                        "marks": point.marks,
                        "source": point.source,
                    }
                )
    return out


def _heat_rows(heat: Heat) -> list[dict[str, str | float]]:
    found: list[dict[str, str | float]] = []
    for i, values in enumerate(heat.values):
        for j, value in enumerate(values):
            if value is not None:
                deviation = heat.deviations[i][j] if heat.deviations else None
                found.append(
                    {
                        "panel": heat.title,
                        "series": _place(heat.y, i),
                        "origin": str(heat.origin),
                        "x": _place(heat.x, j),
                        "y": value,
                        "deviation": "" if deviation is None else deviation,
                        "label": "",
                        "marks": heat.marks[i][j] if heat.marks else "",
                        "source": heat.sources[i][j] if heat.sources else "",
                    }
                )
    return found


def _place(axis: Axis, value: float) -> str | float:
    if math.isnan(value):
        return ""
    return axis.names[int(value)] if axis.names else value


def with_letters(lines: Sequence[str], letters: str, meanings: dict[str, str]) -> tuple[str, ...]:
    """A caption with what the letters beside points mean."""
    told = [f"{letter}: {meanings[letter]}" for letter in sorted(set(letters) & set(meanings))]
    return (*lines, f"Letters: {'; '.join(told)}.") if told else tuple(lines)
