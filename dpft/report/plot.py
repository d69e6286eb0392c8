"""The one plot of a page, an inline SVG of 400 by 230: scores by epsilon or by training step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpft.privacy.rounding import up
from dpft.report.gather import Gathered

_LETTER, _LINE = 6, 14  # of text, about
# From left to right in [0, 1], tick, value, name, and whether its epsilon is proven for all.
Point = tuple[float, str, float, str, bool]


def by_epsilon(runs: Sequence[tuple[Gathered, float]]) -> list[Point]:
    """Return points, on a logarithmic axis between untrained runs and those without a bound."""
    stated = [run.guarantee.stated if run.guarantee else None for run, _ in runs]
    finite = [epsilon for epsilon in stated if epsilon] or [1.0]
    low, spread = min(finite), math.log(max(finite) / min(finite))
    points = []
    for (run, value), epsilon in zip(runs, stated, strict=True):
        where, tick = 0.93, "no bound" if run.private else "no privacy"
        if epsilon == 0:
            where, tick = 0.07, "not trained"
        elif epsilon is not None:
            where = 0.22 + 0.56 * (math.log(epsilon / low) / spread if spread else 0.5)
            tick = up(epsilon)
        void = run.guarantee and run.guarantee.voided_by
        points.append((where, tick, value, run.name, not void))
    return points


def by_step(history: Sequence[Mapping[str, float | None]]) -> list[Point]:
    """Return points of the last figure of each evaluation, which is the accuracy of classes."""
    found = [(one["step"] or 0, one.get(list(history[0])[-1])) for one in history]
    end = max((step for step, _ in found), default=0) or 1
    return [
        (step / end, f"{step:,}", value, "", True) for step, value in found if value is not None
    ]


def drawn(points: Sequence[Point], level: float | None) -> dict[str, Any]:
    """Return places of marks, ticks and ``level``, a constant's score; no text overlaps another."""
    values = [value for _, _, value, _, _ in points]
    among = [*values, *([] if level is None else [level])]
    low, high = min(among), max(among)

    def height(value: float) -> float:
        return round(180 - 140 * ((value - low) / (high - low) if high > low else 0.5), 1)

    marks, ticks = list[dict[str, Any]](), dict[float, str]()
    for where, tick, value, name, proven in points:
        x, y = round(54 + 330 * where, 1), height(value)
        text = f"{name if len(name) < 25 else name[:23] + '…'} {value:.4g}".strip()
        wide = _LETTER * (len(text) + 1)
        left = min(max(x - wide / 2, 52), 395 - wide)
        near = [m for m in marks if m["labelled"] and abs(m["y"] - y) < _LINE]
        free = all(m["right"] < left or left + wide < m["left"] for m in near)
        mark = {"x": x, "y": y, "left": left, "right": left + wide, "text": text}
        marks.append({**mark, "labelled": free, "proven": proven})
        if all(abs(x - at) > _LETTER * len(tick + other) / 2 for at, other in ticks.items()):
            ticks[x] = tick
    ys = [(height(value), f"{value:.4g}") for value in {min(values), max(values)}]
    line = None if level is None else height(level)
    return {
        "marks": marks,
        "xs": list(ticks.items()),
        "ys": ys,
        "level": line,
        "by_step": not points[0][3],
    }
