"""The one plot of a page, an inline SVG of 400 by 230: scores by epsilon or by training step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpft.privacy.rounding import up
from dpft.report.gather import Gathered

_LETTER, _LINE = 6, 14  # of text, about
Point = tuple[float, str, float, str, bool]


def by_epsilon(runs: Sequence[tuple[Gathered, float]]) -> list[Point]:
    """Return points for `drawn`, the best run first, on a logarithmic axis.

    Runs that were not trained are left of it, and those without a proven number right of it.
    """
    stated = [run.guarantee.stated if run.guarantee else None for run, _ in runs]
    finite = [epsilon for epsilon in stated if epsilon] or [1.0]
    low, spread = min(finite), math.log(max(finite) / min(finite))
    points = []
    for (run, value), epsilon in zip(runs, stated, strict=True):
        where, tick = (0.93, "no bound" if run.private else "no privacy")
        if epsilon:
            where = 0.22 + 0.56 * (math.log(epsilon / low) / spread if spread else 0.5)
        elif epsilon == 0:
            where, tick = 0.07, "not trained"
        void = run.guarantee is not None and run.guarantee.voided_by
        points.append((where, up(epsilon) if epsilon else tick, value, run.name, not void))
    return points


def by_step(evaluation: Mapping[str, Any]) -> tuple[str, list[Point]]:
    """Return the name of a figure and points for `drawn`, of evaluations that are public."""
    history = evaluation.get("history") or [{}]
    name = evaluation.get("metric") or next((key for key in history[0] if key != "step"), "")
    found = [(one["step"], one[name]) for one in history if one.get(name) is not None]
    return name, [(step / found[-1][0], f"{step:,}", value, "", True) for step, value in found]


def drawn(points: Sequence[Point], level: float | None) -> dict[str, Any]:
    """Return places of marks and ticks, and of ``level``. Text that would overlap is left out.

    Args:
        points: from left to right in [0, 1], tick, value, name, and whether its epsilon is proven.
        level: the score of an answer that never changes.
    """
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
    ys = [(height(value), f"{value:.4g}") for value in sorted({min(values), max(values)})]
    return {
        "marks": marks,
        "xs": list(ticks.items()),
        "ys": ys,
        "level": None if level is None else height(level),
    }
