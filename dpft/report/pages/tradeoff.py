"""Scores against epsilon: a point for each setting, its seeds averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dpft.privacy.rounding import up
from dpft.report.pages.charts import COLOURS, Chart, Curve, span, ticks
from dpft.report.pages.ranking import Kind, Repeated, kinds_of
from dpft.report.pages.settings import telling

_MOST_CHARTS = 4
_MOST_SERIES = 12
# From the right: the column of runs without privacy, and where epsilon's axis ends before it.
_COLUMN, _GAP = 46.0, 104.0
_RADIUS = 5.0


@dataclass(frozen=True)
class Dot:
    """A point: a path of SVG around its place, and its error bar; empty of one run."""

    name: str
    path: str
    bar: str
    classes: str


@dataclass(frozen=True)
class Tradeoff(Chart):
    """A chart of points. Its curves join those of one series, in the order of epsilon."""

    dots: list[Dot]
    level: tuple[float, str] | None
    legend: list[tuple[str, Dot]]

    @property
    def said(self) -> str:
        """What is shown, for those who do not see it."""
        return f"{self.title}, {len(self.dots)} points, whose numbers are in the table of runs"


def tradeoffs(groups: Sequence[Repeated]) -> list[Tradeoff]:
    """A chart for each task, split and metric of which it says something.

    Args:
        groups: the best first.
    """
    drawn = (_tradeoff(kind, groups) for kind in kinds_of(groups)[:_MOST_CHARTS])
    return [one for one in drawn if one is not None]


def _tradeoff(kind: Kind, groups: Sequence[Repeated]) -> Tradeoff | None:
    """None unless there is an epsilon, and a second point to compare it with."""
    shown = [g for g in groups if g.kind == kind and (not g.private or g.epsilon is not None)]
    epsilons = [group.epsilon for group in shown if group.private and group.epsilon is not None]
    if len(shown) < 2 or not any(epsilons):
        return None
    names = _series(shown)
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    many = len(places) > _MOST_SERIES
    plain = any(not group.private for group in shown)
    constants = {value for g in shown if (value := g.baseline(kind.metric)) is not None}
    constant = constants.pop() if len(constants) == 1 else None
    ends = [
        value + sign * (error or 0.0)
        for value, error, _ in (group.score for group in shown if group.score is not None)
        for sign in (-1, 1)
    ]
    # A perplexity begins at 1, and is not to be seen from 0.
    zero = not kind.lower_is_better
    low, high = span([*ends, *([] if constant is None else [constant])], zero)
    right = Chart.RIGHT - (_GAP if plain else 0.0)
    most = 1.06 * max(epsilons)

    def x(group: Repeated) -> float:
        if not group.private or group.epsilon is None:
            return Chart.RIGHT - _COLUMN
        return Chart.LEFT + group.epsilon / most * (right - Chart.LEFT)

    def y(value: float) -> float:
        return Chart.BASE - (value - low) / (high - low) * (Chart.BASE - Chart.TOP)

    dots, joined = [], dict[str, list[tuple[float, float]]]()
    for group, name in zip(shown, names, strict=True):
        if group.score is None:
            continue
        place = 0 if many else places[name]
        across, up_to, error = x(group), y(group.score.value), group.score.error
        bar = ""
        if error is not None:
            top, bottom = y(group.score.value + error), y(group.score.value - error)
            bar = f"M{across:.1f} {top:.1f}V{bottom:.1f}" + "".join(
                f"M{across - 4:.1f} {end:.1f}h8" for end in (top, bottom)
            )
        hollow = " hollow" if group.void else ""
        said = f"epsilon {up(group.epsilon)}" if group.private else "no privacy"
        dots.append(
            Dot(
                f"{name or group.runs[0].name}, {said}: {kind.metric} {group.score}",
                _marker(place, across, up_to),
                bar,
                f"dot f{place % COLOURS}{hollow}",
            )
        )
        if group.private:
            joined.setdefault(name, []).append((across, up_to))
    along = [
        (Chart.LEFT + value / most * (right - Chart.LEFT), label)
        for value, label in ticks(0.0, most, log=False)
    ]
    if plain:
        along.append((Chart.RIGHT - _COLUMN, "no privacy"))
    return Tradeoff(
        title=f"{kind.metric} against epsilon",
        remarks=_remarks(kind, shown, kinds_of(groups)),
        across=along,
        up=[(y(value), label) for value, label in ticks(low, high, log=False)],
        curves=[
            Curve(name, _joined(points), f"joined s{places[name] % COLOURS}")
            for name, points in joined.items()
            if len(points) > 1 and not many
        ],
        below="epsilon, at most: smaller is more private",
        dots=dots,
        level=None if constant is None else (y(constant), "most frequent class everywhere"),
        legend=[
            (name, Dot("", _marker(place, 8, 7), "", f"dot f{place % COLOURS}"))
            for name, place in places.items()
        ]
        if len(places) > 1 and not many
        else [],
    )


def _series(groups: Sequence[Repeated]) -> list[str]:
    """What tells groups apart but their budgets; runs without privacy need no clipping style."""
    configs = [
        {
            name: value
            for name, value in group.runs[0].config.items()
            if name not in {"privacy", "eps"} and (name != "clip" or _clips_differ(groups))
        }
        for group in groups
    ]
    columns = telling(configs, [""] * len(groups))
    names = [
        " ".join(f"{k}={v[place]}" for k, v in columns.items()) for place in range(len(groups))
    ]
    # A series of one run has the run's name, unless a sweep made it from settings.
    return [
        group.runs[0].name
        if name and names.count(name) == len(group.runs) == 1 and group.runs[0].label is None
        else name
        for name, group in zip(names, groups, strict=True)
    ]


def _clips_differ(groups: Sequence[Repeated]) -> bool:
    # Of those that took a step: what is not trained clips nothing.
    clips = [
        group.runs[0].config.get("clip") for group in groups if group.private and group.epsilon
    ]
    return any(one != other for one, other in pairwise(clips))


def _remarks(kind: Kind, groups: Sequence[Repeated], kinds: Sequence[Kind]) -> str:
    said = []
    if len({other.task for other in kinds}) > 1 or len({other.split for other in kinds}) > 1:
        said.append(f"{kind.task}, {kind.split}")
    if any(group.score is not None and group.score.n > 1 for group in groups):
        said.append("means over seeds, bars are one standard error")
    if any(group.void for group in groups):
        said.append("hollow: see the run's warning on its epsilon")
    if kind.lower_is_better:
        said.append("lower is better")
    return "; ".join(said)


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in sorted(points))


def _marker(place: int, x: float, y: float) -> str:
    """Circle, square, diamond or triangle: series are told apart without colours too."""
    r = _RADIUS
    shape = place % 4
    if shape == 0:
        return f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z"
    if shape == 1:
        return f"M{x - r + 0.5:.1f} {y - r + 0.5:.1f}h{2 * r - 1}v{2 * r - 1}h{1 - 2 * r}z"
    if shape == 2:
        r += 1
        return f"M{x:.1f} {y - r:.1f}l{r} {r}l{-r} {r}l{-r} {-r}z"
    return f"M{x:.1f} {y - r:.1f}l{r} {1.8 * r}h{-2 * r}z"
