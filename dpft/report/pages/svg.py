"""Line charts as inline SVG, whose colours follow the page's, so that they suit light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpft.report.pages.frame import Html, text

_WIDTH, _HEIGHT = 640.0, 250.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 14.0, 10.0, 40.0
_COLOURS = 8
# With colours and dashes so many lines can be told apart.
MOST_LINES = 3 * _COLOURS
# Hues of lines that have an order: from blue to red.
_FIRST_HUE, _LAST_HUE = 225.0, 5.0

STYLE = """
:root { --c0: #0b5a9e; --c1: #b8500a; --c2: #1a7a3c; --c3: #9c2a78; --c4: #6b5b00; --c5: #00707c;
  --c6: #b0232a; --c7: #555; --grid: #e6e6e6; }
@media (prefers-color-scheme: dark) { :root { --c0: #6cb4f0; --c1: #f0995a; --c2: #6fd08c;
  --c3: #e68ac4; --c4: #d8c24a; --c5: #58cfe0; --c6: #ff8a80; --c7: #bbb; --grid: #333; } }
figure { margin: 1rem 0; max-width: 46rem; break-inside: avoid; }
figcaption { font-weight: 600; } figcaption span { font-weight: 400; color: var(--quiet); }
svg { display: block; width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--quiet); }
.y { text-anchor: end; } .x { text-anchor: middle; }
.grid { stroke: var(--grid); stroke-width: 1; } .axis { stroke: var(--quiet); stroke-width: 1; }
.line { fill: none; stroke-width: 1.7; stroke-linejoin: round; stroke-linecap: round; }
.s0 { stroke: var(--c0); } .s1 { stroke: var(--c1); } .s2 { stroke: var(--c2); }
.s3 { stroke: var(--c3); } .s4 { stroke: var(--c4); } .s5 { stroke: var(--c5); }
.s6 { stroke: var(--c6); } .s7 { stroke: var(--c7); }
.d1 { stroke-dasharray: 7 4; } .d2 { stroke-dasharray: 2 4; }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1rem; padding: 0;
  margin: .2rem 0 0; font-size: .85rem; }
ul.legend svg { display: inline-block; width: 24px; height: 8px; margin-right: .35rem; }
"""


@dataclass(frozen=True)
class Line:
    """A named curve.

    Attributes:
        name: for the legend.
        points: step and value, in the steps' order; None where there is no finite value.
        look: which colour and dash; None: those of its place. What is shown in several charts
            should look the same in all of them.
    """

    name: str
    points: tuple[tuple[float, float | None], ...]
    look: int | None = None


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    log: bool = False,
    zero: bool = False,
    ordered: bool = False,
    note: str = "",
    points: int = 4000,
) -> Html:
    """A chart over steps with its title and, for several lines, a legend; empty without values.

    Args:
        title: what is shown.
        lines: at most `MOST_LINES` can be told apart, unless ``ordered``.
        log: whether values are shown on a logarithmic axis; those not above 0 are then gaps.
        zero: whether the axis begins at 0.
        ordered: whether the lines have an order, which their hues then show.
        note: said beside the title.
        points: how many are drawn of all lines together; of longer ones every n-th step.
    """
    each = max(24, points // max(1, len(lines)))
    every = max((_stride(len(line.points), each) for line in lines), default=1)
    drawn = [_scaled(line, _stride(len(line.points), each), log) for line in lines]
    values = [value for line in drawn for _, value in line.points if value is not None]
    if not values:
        return Html("")
    steps = [step for line in drawn for step, _ in line.points]
    low, high = _span(values, zero and not log)
    first, last = min(steps), max(steps)
    if first == last:
        first, last = first - 1, last + 1
    # The corners are the caller's numbers; between them everything is linear.
    wide = (_WIDTH - _LEFT - _RIGHT) / (last - first)
    tall = (_HEIGHT - _TOP - _BOTTOM) / (high - low)

    def across(step: float) -> float:
        return _LEFT + (step - first) * wide

    def down(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - low) * tall

    parts = []
    for place, told in _ticks(low, high, log):
        y = f"{down(place):.1f}"
        parts.append(
            f"<line class='grid' x1='{_LEFT:g}' x2='{_WIDTH - _RIGHT:g}' y1='{y}' y2='{y}'/>"
        )
        parts.append(f"<text class='y' x='{_LEFT - 6:g}' y='{down(place) + 4:.1f}'>{told}</text>")
    base = _HEIGHT - _BOTTOM
    for place, told in _ticks(first, last, log=False, whole=True):
        parts.append(f"<text class='x' x='{across(place):.1f}' y='{base + 16:g}'>{told}</text>")
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f"<text class='x' x='{middle:g}' y='{_HEIGHT - 6:g}'>step</text>")
    parts.append(
        f"<line class='axis' x1='{_LEFT:g}' x2='{_WIDTH - _RIGHT:g}' y1='{base:g}' y2='{base:g}'/>"
    )
    looks = [_look(line, place, len(lines), ordered) for place, line in enumerate(lines)]
    for line, look in zip(drawn, looks, strict=True):
        shape = _path([(across(s), None if v is None else down(v)) for s, v in line.points])
        parts.append(f"<path {look} d='{shape}'><title>{text(line.name)}</title></path>")
    body = "\n".join(parts)
    remarks = [note] if note else []
    remarks += [f"every {_ordinal(every)} step is drawn"] if every > 1 else []
    said = f" <span>{text('; '.join(remarks))}</span>" if remarks else ""
    legend = _legend(lines, looks) if len(lines) > 1 else ""
    return Html(
        f"<figure>\n<figcaption>{text(title)}{said}</figcaption>\n"
        f"<svg viewBox='0 0 {_WIDTH:g} {_HEIGHT:g}' role='img' aria-label='{text(title)}'>\n"
        f"{body}\n</svg>{legend}\n</figure>"
    )


def _stride(count: int, most: int) -> int:
    return max(1, math.ceil((count - 1) / (most - 1)))


def _scaled(line: Line, stride: int, log: bool) -> Line:
    kept = [*line.points[:-1:stride], *line.points[-1:]]
    return Line(line.name, tuple((step, _value(value, log)) for step, value in kept))


def _value(value: float | None, log: bool) -> float | None:
    if value is None or not math.isfinite(value) or (log and value <= 0):
        return None
    return math.log10(value) if log else value


def _span(values: Sequence[float], zero: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if zero:
        low, high = min(0.0, low), max(0.0, high)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300):
        room = 0.1 * max(abs(low), abs(high)) or 1.0
        return low - room, high + room
    room = 0.05 * (high - low)
    return low if zero and low == 0 else low - room, high + room


def _ticks(low: float, high: float, log: bool, whole: bool = False) -> list[tuple[float, str]]:
    """Places on the axis, in its own units, and what stands there."""
    if log:
        for factors, enough in (((1,), 3), ((1, 2, 5), 2)):
            powers = range(math.floor(low) - 1, math.ceil(high) + 1)
            found = [math.log10(f) + power for power in powers for f in factors]
            found = [place for place in found if low <= place <= high]
            if len(found) >= enough:
                every = math.ceil(len(found) / 7)
                return [(place, f"{10**place:.4g}") for place in found[::every]]
        inside = _ticks(10**low, 10**high, log=False)
        return [(math.log10(place), told) for place, told in inside if place > 0]
    step = _nice((high - low) / 5)
    if whole:
        step = max(1.0, step)
    places = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [(place * step, _number(place * step, step)) for place in places]


def _nice(rough: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not below ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _number(value: float, step: float) -> str:
    if value and (abs(value) >= 1e7 or step < 1e-4):
        return f"{value:.3g}"
    return f"{value:,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _look(line: Line, place: int, count: int, ordered: bool) -> str:
    if ordered:
        share = place / max(1, count - 1)
        hue = _FIRST_HUE + share * (_LAST_HUE - _FIRST_HUE)
        return f"class='line' style='stroke: hsl({hue:.0f} 62% 46%)'"
    place = place if line.look is None else line.look
    dash = place // _COLOURS % 3
    return f"class='line s{place % _COLOURS}{f' d{dash}' if dash else ''}'"


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    """Moves and lines; a single point between gaps becomes a dot."""
    said, pen = [], False
    for x, y in points:
        if y is None:
            pen = False
            continue
        said.append(f"{'L' if pen else 'M'}{x:.1f} {y:.1f}{'' if pen else 'h0'}")
        pen = True
    return "".join(said)


def _legend(lines: Sequence[Line], looks: Sequence[str]) -> str:
    items = "".join(
        f"<li><svg viewBox='0 0 24 8'><path {look} d='M1 4H23'/></svg>{text(line.name)}</li>"
        for line, look in zip(lines, looks, strict=True)
    )
    return f"\n<ul class='legend'>{items}</ul>"


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    teens = 10 <= number % 100 <= 20
    return f"{number}{'th' if teens else endings.get(number % 10, 'th')}"
