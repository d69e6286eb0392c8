"""Heat maps of two settings: what the paper prints, and ours beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpft.reproduce.figures.catalog import Figure
from dpft.reproduce.figures.content import Axis, Content, Heat, Origin
from dpft.reproduce.figures.inputs import Inputs, ScorePair, Table
from dpft.reproduce.papers.schema import Label, show_label


def heat_maps(figure: Figure, inputs: Inputs) -> Content:
    """Printed and ours of each table: its first label goes down, its second across."""
    panels: list[Heat] = []
    for table in inputs.tables:
        maps = [
            _map(figure, table, origin)
            for origin in (Origin.PRINTED, Origin.OURS)
            if any(score.value(origin) is not None for score in table.scores)
        ]
        if inputs.scale == "paper":
            # A small model's scores have a range of their own, of which one colour would be left.
            values = [point.y for one in maps for point in one.points]
            maps = [replace(one, limits=(min(values), max(values))) for one in maps]
        panels += maps
    names = ", ".join(table.printed.name for table in inputs.tables)
    notes = [f"What is inferred, and what disagrees: dpft table {names}."]
    if inputs.scale == "laptop" and any(panel.origin is Origin.OURS for panel in panels):
        notes.append("Colours of printed numbers and of ours have different ranges.")
    if any(point is None for panel in panels for row in panel.cells for point in row):
        notes.append("Dots are cells without a run.")
    return Content(panels, notes, columns=2)


def _map(figure: Figure, table: Table, origin: Origin) -> Heat:
    printed = table.printed
    down, across = printed.label_names
    # The laptop's scale leaves whole rows and columns out: they would be empty.
    scores = [one for one in table.scores if origin is Origin.PRINTED or one.run is not None]
    ys, xs = (list(dict.fromkeys(one.label(label) for one in scores)) for label in (down, across))
    cells = {(score.label(down), score.label(across)): score for score in scores}
    column = printed.columns[0]
    return Heat(
        title=f"{printed.source.split(', ')[-1]}, {origin}",
        x=_axis(figure, across, xs, scores, origin),
        y=_axis(figure, down, ys, scores, origin),
        label=column.label,
        cells=tuple(
            tuple(
                cells[y, x].point(j, origin) if (y, x) in cells else None for j, x in enumerate(xs)
            )
            for y in ys
        ),
        origin=origin,
        decimals=column.decimals,
        lines=(_lines(figure, across, xs), _lines(figure, down, ys)),
    )


def _lines(figure: Figure, label: str, values: Sequence[Label]) -> tuple[float, ...]:
    """Where the paper's line between two values falls among these."""
    if label not in figure.lines:
        return ()
    last, first = figure.lines[label]
    numbers = [float(value) for value in values if value is not None]
    before = sum(one <= last if last < first else one >= last for one in numbers)
    return (before - 0.5,) if 0 < before < len(values) else ()


def _axis(
    figure: Figure, label: str, values: Sequence[Label], scores: Sequence[ScorePair], origin: Origin
) -> Axis:
    """The label's values; where our runs have other rates than the printed ones, both."""
    names = [show_label(value) for value in values]
    if origin is Origin.PRINTED and label in figure.inferred:
        label = f"{label} (inferred)"
    elif origin is Origin.OURS and label == "learning rate":
        for place, value in enumerate(values):
            runs = [score.run for score in scores if score.label(label) == value]
            rates = {run.run.optim.lr for run in runs if run is not None}
            if rates and rates != {value}:
                names[place] = f"{', '.join(f'{rate:g}' for rate in sorted(rates))} for {value:g}"
    return Axis(label, names=tuple(names))
