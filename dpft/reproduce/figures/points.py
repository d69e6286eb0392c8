"""Scores against a setting, a size or a time: printed points and ours in one panel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from dpft.reproduce.figures.content import Axis, Content, Look, Origin, Panel, Point, Series
from dpft.reproduce.figures.materials import Materials, Part, Spot
from dpft.reproduce.figures.sizes import non_embedding
from dpft.reproduce.papers.schema import Label, show_label

XOf = Callable[[Spot, Origin], float | None]


def by_label(name: str) -> XOf:
    """A number among the row's labels."""

    def x(spot: Spot, origin: Origin) -> float | None:
        value = spot.label(name)
        return float(value) if isinstance(value, int | float) else None

    return x


def parameters(spot: Spot, origin: Origin) -> float | None:
    """Millions outside the embeddings: of the paper's model, or of the one that ran for it."""
    if origin is Origin.PRINTED:
        # As printed: RoBERTa-base, GPT-2-medium.
        return non_embedding(str(spot.label("model")).lower().replace("gpt-2", "gpt2"))
    return None if spot.run is None else non_embedding(spot.run.run.model.name)


def epochs(spot: Spot, origin: Origin) -> float | None:
    """Epochs of the run; of a printed point those of its row."""
    if origin is Origin.PRINTED:
        return by_label("epochs")(spot, origin)
    return None if spot.run is None else spot.run.run.optim.epochs


def wall_time(spot: Spot, origin: Origin) -> float | None:
    """Minutes of training, as recorded, mean over seeds; of printed points nothing is known."""
    if origin is Origin.PRINTED or not spot.cell.paths:
        return None
    from dpft.runs.record import read_record

    seconds = [float(read_record(p)["training"]["seconds"]) for p in spot.cell.paths]
    return fmean(seconds) / 60


@dataclass(frozen=True)
class Lines:
    """A panel of scores.

    Attributes:
        title: above it.
        column: whose scores.
        x: the place of a score.
        axis: of ``x``.
        y: label of the scores.
        series: labels of rows that tell the series.
        where: labels that a row must have.
        parts: which of the figure's.
        look: joined or not.
        named: a label that is written beside each point.
    """

    title: str
    column: str
    x: XOf
    axis: Axis
    y: str
    series: tuple[str, ...] = ()
    where: Mapping[str, Label] = field(default_factory=dict)
    parts: tuple[int, ...] = (0,)
    look: Look = "line"
    named: str | None = None


def points(
    name: str,
    title: str,
    source: str,
    at_hand: Materials,
    panels: Sequence[Lines],
    caption: Sequence[str] = (),
    columns: int | None = None,
) -> Content:
    """A figure of such panels."""
    found = [_panel(panel, [at_hand.parts[i] for i in panel.parts]) for panel in panels]
    drawn = tuple(panel for panel in found if panel.series)
    timed = [part for panel in panels if panel.x is wall_time for part in panel.parts]
    told = [*caption, *_machines([at_hand.parts[i] for i in dict.fromkeys(timed)])]
    return Content(name, title, source, drawn, at_hand.caption(told, letters_of(drawn)), columns)


def _machines(parts: Sequence[Part]) -> list[str]:
    """Where the times of the parts' runs are from; nothing where no record says it."""
    from dpft.runs.record import read_record

    paths = dict.fromkeys(p for part in parts for spot in part.spots for p in spot.cell.paths)
    found: dict[str, None] = {}
    for path in paths:
        facts = read_record(path).get("environment") or {}
        processor = f"{facts.get('cpu', 'machine unknown')}, {facts.get('threads', '?')} threads"
        found[str(facts.get("gpu") or processor)] = None
    if not found:
        return []
    text = f"Times are of {' and of '.join(found)}."
    if len(found) > 1:
        text = f"WARNING: times of {len(found)} machines, which do not compare. {text}"
    return [text]


def letters_of(panels: Sequence[Panel]) -> str:
    """Of the marks beside points."""
    return "".join(p.marks for panel in panels for s in panel.series for p in s.points)


def _panel(spec: Lines, parts: Sequence[Part]) -> Panel:
    series = []
    for origin in (Origin.PRINTED, Origin.OURS):
        found: dict[str, list[Point]] = {}
        for spot in (spot for part in parts for spot in part.spots):
            matching = all(spot.label(key) == value for key, value in spec.where.items())
            if spot.column.key != spec.column or not matching:
                continue
            x = spec.x(spot, origin)
            point = None if x is None else spot.point(x, origin)
            if point is not None:
                if spec.named is not None:
                    point = replace(point, label=str(spot.label(spec.named)))
                found.setdefault(_name(spec.series, spot), []).append(point)
        series += [
            Series(label, tuple(sorted(listed, key=lambda p: p.x)), origin, spec.look)
            for label, listed in found.items()
        ]
    return Panel(spec.title, spec.axis, Axis(spec.y), tuple(series))


def _name(labels: Sequence[str], spot: Spot) -> str:
    told = []
    for label in labels:
        value = spot.label(label)
        told.append(value if isinstance(value, str) else f"{label} {show_label(value)}")
    return ", ".join(told) or "score"


def label_words(name: str, title: str, source: str, at_hand: Materials) -> Content:
    """Li et al. 2022, Figure 7: fine-tuned accuracy by the accuracy that words have untrained."""
    (part,) = at_hand.parts
    spots = list(part.spots)
    untrained = {
        spot.label("words"): spot.cell.ours
        for spot in spots
        if spot.label("training") == "zero-shot"
    }
    series = []
    for training in ("non-private", "epsilon 3"):
        found = []
        for spot in spots:
            x = untrained.get(spot.label("words"))
            if spot.label("training") == training and x is not None:
                point = spot.point(x, Origin.OURS)
                found += [] if point is None else [point]
        if found:
            label = f"{training}, words varied"
            series.append(Series(label, tuple(sorted(found, key=lambda p: p.x)), Origin.OURS))
    for label, words, training in (
        ("epsilon 3, first token (no infilling)", "first token", "epsilon 3"),
        ("epsilon 3, default words", "great / terrible", "epsilon 3"),
    ):
        for spot in spots:
            if (spot.label("words"), spot.label("training")) == (words, training):
                point = spot.point(math.nan, Origin.OURS)
                if point is not None:
                    series.append(Series(label, (point,), Origin.OURS, "level"))
    panel = Panel(
        "SST-2, dev",
        Axis("accuracy of the words without training (%)"),
        Axis("accuracy after training (%)"),
        tuple(series),
    )
    caption = at_hand.caption(
        [
            "Each place is a pair of label words; its accuracy without training is that of the "
            "pretrained model filling the blank. The paper's pairs are not printed: these are ours."
        ],
        letters_of([panel]),
    )
    return Content(name, title, source, (panel,), caption)
