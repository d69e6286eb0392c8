"""The geometry of charts, which ``templates/macros.html`` draws as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

COLOURS = 8
# Hues of lines that have an order: from blue to red.
_FIRST_HUE, _LAST_HUE = 225.0, 5.0


@dataclass(frozen=True)
class Line:
    """A named curve.

    Attributes:
        name: for the legend.
        points: step and value, in the steps' order; None where there is no finite value.
        look: which colour and dash; None: those of its place. One run has the same in all charts.
    """

    name: str
    points: tuple[tuple[float, float | None], ...]
    look: int | None = None


@dataclass(frozen=True)
class Curve:
    """A line as it is drawn: a path of SVG with its name, CSS classes and a colour of its own."""

    name: str
    path: str
    classes: str
    colour: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart in the units of its drawing, whose y axis points down.

    Attributes:
        title: what it shows.
        remarks: beside the title.
        across: ticks of the steps: place and label.
        up: ticks of the values: place and label.
        curves: in the lines' order; several have a legend.
        below: what goes across.
    """

    WIDTH: ClassVar[float] = 640
    HEIGHT: ClassVar[float] = 250
    LEFT: ClassVar[float] = 78
    RIGHT: ClassVar[float] = 626
    TOP: ClassVar[float] = 10
    BASE: ClassVar[float] = 204

    title: str
    remarks: str
    across: list[tuple[float, str]]
    up: list[tuple[float, str]]
    curves: list[Curve]
    below: str

    @property
    def said(self) -> str:
        """What is shown, for those who do not see it."""
        ends = [label for _, label in (*self.across[:1], *self.across[-1:])]
        levels = [label for _, label in (*self.up[:1], *self.up[-1:])]
        shown = f"{self.title}, {len(self.curves)} curves" if len(self.curves) > 1 else self.title
        return f"{shown}; {self.below} from {' to '.join(ends)}, values from {' to '.join(levels)}"


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    log: bool = False,
    zero: bool = False,
    ordered: bool = False,
    note: str = "",
    points: int = 4000,
) -> Chart | None:
    """A chart over steps; None if the lines have no values.

    Args:
        title: what it shows.
        lines: colours and dashes distinguish 24, unless ``ordered``.
        log: whether the axis of values is logarithmic; values not above 0 are then gaps.
        zero: whether the axis begins at 0.
        ordered: whether the lines have an order, which their hues then follow.
        note: beside the title.
        points: how many are drawn of all lines together; of longer ones every n-th step.
    """
    each = max(24, points // max(1, len(lines)))
    every = max((_stride(len(line.points), each) for line in lines), default=1)
    drawn = [_thinned(line, each, log) for line in lines]
    values = [value for line in drawn for _, value in line if value is not None]
    if not values:
        return None
    low, high = span(values, zero and not log)
    steps = [step for line in drawn for step, _ in line]
    first, last = min(0.0, *steps), max(1.0, *steps)

    def x(step: float) -> float:
        return Chart.LEFT + (step - first) / (last - first) * (Chart.RIGHT - Chart.LEFT)

    def y(value: float) -> float:
        return Chart.BASE - (value - low) / (high - low) * (Chart.BASE - Chart.TOP)

    remarks = [note, f"one step of {every} is drawn" if every > 1 else ""]
    return Chart(
        title,
        "; ".join(filter(None, remarks)),
        [(x(place), label) for place, label in ticks(first, last, log=False, whole=True)],
        [(y(place), label) for place, label in ticks(low, high, log)],
        [
            Curve(
                line.name,
                _path([(x(step), None if value is None else y(value)) for step, value in kept]),
                *_look(line, place, len(lines), ordered),
            )
            for place, (line, kept) in enumerate(zip(lines, drawn, strict=True))
        ],
        "step",
    )


def _stride(count: int, most: int) -> int:
    return max(1, math.ceil((count - 1) / (most - 1)))


def _thinned(line: Line, most: int, log: bool) -> list[tuple[float, float | None]]:
    """The first, every n-th and the last point, in the units of the axis."""
    stride = _stride(len(line.points), most)
    kept = [*line.points[:-1:stride], *line.points[-1:]]
    return [(step, _value(value, log)) for step, value in kept]


def _value(value: float | None, log: bool) -> float | None:
    if value is None or not math.isfinite(value) or (log and value <= 0):
        return None
    return math.log10(value) if log else value


def span(values: Sequence[float], zero: bool) -> tuple[float, float]:
    """The ends of an axis: a little room around the values, and 0 where it is to begin there."""
    low, high = min(values), max(values)
    if zero:
        low, high = min(0.0, low), max(0.0, high)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300):
        room = 0.1 * max(abs(low), abs(high)) or 1.0
        return low - room, high + room
    room = 0.05 * (high - low)
    return low if zero and low == 0 else low - room, high + room


def ticks(low: float, high: float, log: bool, whole: bool = False) -> list[tuple[float, str]]:
    """Places on the axis, in its own units, with their labels."""
    if log:
        for factors, enough in (((1,), 3), ((1, 2, 5), 2)):
            powers = range(math.floor(low) - 1, math.ceil(high) + 1)
            places = [math.log10(f) + power for power in powers for f in factors]
            inside = [place for place in places if low <= place <= high]
            if len(inside) >= enough:
                every = math.ceil(len(inside) / 7)
                return [(place, f"{10**place:.4g}") for place in inside[::every]]
        linear = ticks(10**low, 10**high, log=False)
        return [(math.log10(place), label) for place, label in linear if place > 0]
    step = _nice((high - low) / 5)
    if whole:
        step = max(1.0, step)
    multiples = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [(multiple * step, _number(multiple * step, step)) for multiple in multiples]


def _nice(rough: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not below ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _number(value: float, step: float) -> str:
    if value and (abs(value) >= 1e7 or step < 1e-4):
        return f"{value:.3g}"
    return f"{value:,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _look(line: Line, place: int, count: int, ordered: bool) -> tuple[str, str]:
    """CSS classes, and the colour of a line that has an order."""
    if ordered:
        hue = _FIRST_HUE + place / max(1, count - 1) * (_LAST_HUE - _FIRST_HUE)
        return "line", f"hsl({hue:.0f} 62% var(--hues))"
    place = place if line.look is None else line.look
    dash = place // COLOURS % 3
    return f"line s{place % COLOURS}{f' d{dash}' if dash else ''}", ""


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    """Moves and lines; a single point between gaps becomes a dot."""
    parts, pen_down = [], False
    for x, y in points:
        if y is not None:
            parts.append(f"L{x:.1f} {y:.1f}" if pen_down else f"M{x:.1f} {y:.1f}h0")
        pen_down = y is not None
    return "".join(parts)
