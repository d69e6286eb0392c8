"""Heat maps of two settings: what the paper prints, and ours beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dpft.reproduce.figures.content import Axis, Content, Heat, Origin
from dpft.reproduce.figures.materials import Materials, Part, Spot

# Where red lines divide the paper's Figure 2: the last value before a line, and the first after.
_QUARTERS: Mapping[str, Sequence[tuple[str, float, float]]] = {
    "li2022/figure-2": (("batch size", 64, 512), ("learning rate", 2.5e-4, 3.125e-5))
}
# Values that the paper's axes do not print; its table's notes say what they are inferred from.
_INFERRED = {("li2022/figure-2", "batch size"), ("li2022/figure-8a", "batch size")}


def heat_maps(name: str, title: str, source: str, at_hand: Materials) -> Content:
    """Printed and ours of each part: its first label goes down, its second across."""
    panels: list[Heat] = []
    letters = ""
    for part in at_hand.parts:
        spots = list(part.spots)
        letters += "".join(spot.letters for spot in spots if spot.cell.ours is not None)
        maps = [
            _map(part, spots, origin)
            for origin in (Origin.PRINTED, Origin.OURS)
            if any(_value(spot, origin) is not None for spot in spots)
        ]
        # A small model's scores have a range of their own, of which one colour would be left.
        panels += maps if at_hand.scale == "laptop" else _alike(maps)
    names = ", ".join(part.table.name for part in at_hand.parts)
    caption = [f"What is inferred, and what disagrees: dpft table {names}."]
    if at_hand.scale == "laptop" and any(panel.origin is Origin.OURS for panel in panels):
        caption.append("Colours of printed numbers and of ours have different ranges.")
    if any(_gaps(panel) for panel in panels):
        caption.append("Dots are cells without a run.")
    return Content(
        *(name, title, source, tuple(panels)), at_hand.caption(caption, letters), columns=2
    )


def _value(spot: Spot, origin: Origin) -> float | None:
    return spot.printed if origin is Origin.PRINTED else spot.cell.ours


def _alike(maps: Sequence[Heat]) -> list[Heat]:
    """The maps with one range of colours, that of all their numbers."""
    values = [value for one in maps for row in one.values for value in row if value is not None]
    return [replace(one, limits=(min(values), max(values))) for one in maps]


def _gaps(heat: Heat) -> bool:
    return any(value is None for row in heat.values for value in row)


def _map(part: Part, spots: list[Spot], origin: Origin) -> Heat:
    table = part.table
    down, across = table.label_names
    if origin is Origin.OURS:
        # The laptop's scale leaves whole rows and columns out: they would be empty.
        spots = [spot for spot in spots if spot.run is not None]
    ys = list(dict.fromkeys(spot.label(down) for spot in spots))
    xs = list(dict.fromkeys(spot.label(across) for spot in spots))
    cells = {(spot.label(down), spot.label(across)): spot for spot in spots}
    points = [
        [cells[y, x].point(j, origin) if (y, x) in cells else None for j, x in enumerate(xs)]
        for y in ys
    ]
    lines: tuple[list[float], list[float]] = ([], [])
    for label, last, first in _QUARTERS.get(table.name, ()):
        places = xs if label == across else ys
        before = sum(value <= last if last < first else value >= last for value in places)
        if 0 < before < len(places):
            lines[0 if label == across else 1].append(before - 0.5)
    return Heat(
        title=f"{table.source.split(', ')[-1]}, {origin}",
        x=_axis(table.name, across, xs, spots, origin),
        y=_axis(table.name, down, ys, spots, origin),
        label=table.columns[0].label,
        values=tuple(tuple(None if p is None else p.y for p in row) for row in points),
        decimals=table.columns[0].decimals,
        marks=tuple(tuple(p.marks if p else "" for p in row) for row in points),
        deviations=tuple(tuple(None if p is None else p.error for p in row) for row in points),
        sources=tuple(tuple(p.source if p else "" for p in row) for row in points),
        origin=origin,
        lines=(tuple(lines[0]), tuple(lines[1])),
    )


def _axis(
    table: str, label: str, values: Sequence[float], spots: Sequence[Spot], origin: Origin
) -> Axis:
    """The label's values; where our runs have other rates than the printed ones, both."""
    names = [f"{value:g}" for value in values]
    if origin is Origin.PRINTED and (table, label) in _INFERRED:
        label = f"{label} (inferred)"
    elif origin is Origin.OURS and label == "learning rate":
        for place, value in enumerate(values):
            runs = [spot.run for spot in spots if spot.label(label) == value]
            rates = {run.run.optim.lr for run in runs if run is not None}
            if rates and rates != {value}:
                names[place] = f"{', '.join(f'{rate:g}' for rate in sorted(rates))} for {value:g}"
    return Axis(label, names=tuple(names))
