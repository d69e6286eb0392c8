"""Scores against settings, sizes, times or memory, and heat maps: printed numbers and ours."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from dpft.reproduce.figures.benchmarks import time_by_style
from dpft.reproduce.figures.catalog import Figure, Inputs, ScorePair, ScoreSeries, Table
from dpft.reproduce.figures.computed import SHAPES, relative_peak
from dpft.reproduce.figures.content import Axis, Content, FigurePoint, Heat, Origin, Panel, Series
from dpft.reproduce.papers import Label, show_label


def scores(figure: Figure, inputs: Inputs) -> Content:
    """Return the figure's series in their panels; panels without numbers are left out."""
    by_panel: dict[str, list[ScoreSeries]] = {}
    for one in figure.series:
        by_panel.setdefault(one.panel, []).append(one)
    panels = [
        Panel(
            *(title, asked[0].x_axis, Axis(asked[0].y)),
            tuple(
                series
                for origin in (Origin.PRINTED, Origin.OURS)
                for one in asked
                for series in _series(one, origin, inputs)
            ),
        )
        for title, asked in by_panel.items()
    ]
    notes = list(figure.notes)
    if any(one.x == "minutes" for one in figure.series):
        notes += _machines(inputs)
    return Content([panel for panel in panels if panel.series], notes)


def _series(asked: ScoreSeries, origin: Origin, inputs: Inputs) -> list[Series]:
    by_label: dict[str, list[FigurePoint]] = {}
    for score in inputs.scores:
        if score.column.key != asked.column or not score.row.matches(asked.where):
            continue
        x = math.nan if asked.look == "level" else _position(asked.x, score, origin, inputs)
        beside = _text(asked.beside, score, origin)
        point = None if x is None else score.point(x, origin, beside)
        if point is not None:
            by_label.setdefault(_text(asked.label, score), []).append(point)
    return [
        Series(
            *(label, tuple(sorted(points, key=lambda p: p.x) if asked.sort else points)),
            *(origin, asked.look),
            legend_origin=True,
        )
        for label, points in by_label.items()
    ]


def _text(template: str, score: ScorePair, origin: Origin = Origin.PRINTED) -> str:
    """Fill labels of the row into a template; next to a point of ours, the model that ran."""
    labels = {name: show_label(value) for name, value in score.row.labels.items()}
    if origin is Origin.OURS and score.run is not None:
        labels["model"] = score.run.run.model.name
    return template.format_map(labels)


# Where a score may stand, besides at a label of its row.
POSITIONS = ("parameters", "epochs", "minutes", "untrained", "printed_peak", "counted_peak")


def _position(x: str, score: ScorePair, origin: Origin, inputs: Inputs) -> float | None:
    """Return where a score stands: at one of `POSITIONS`, or at a label of its row.

    Nothing is known of printed minutes; ``untrained`` is our accuracy of the same label words.
    """
    run = None if score.run is None else score.run.run
    if x == "parameters":
        if origin is Origin.PRINTED:  # as printed: RoBERTa-base, GPT-2-medium
            return non_embedding(str(score.label("model")).lower().replace("gpt-2", "gpt2"))
        return None if run is None else non_embedding(run.model.name)
    if x == "epochs" and origin is Origin.OURS:
        return None if run is None else run.optim.epochs
    if x == "minutes":
        if origin is Origin.PRINTED or not score.cell.runs:
            return None
        return fmean(float(one.record["training"]["seconds"]) for one in score.cell.runs) / 60
    if x == "untrained":
        wanted = {"words": (score.label("words"),), "training": ("zero-shot",)}
        return next((one.cell.ours for one in inputs.scores if one.row.matches(wanted)), None)
    if x == "printed_peak":
        return _number(score.row.printed.get("peak_memory_gb"))
    return _counted_peak(score) if x == "counted_peak" else _number(score.label(x))


def _number(value: Label) -> float | None:
    return float(value) if isinstance(value, int | float) and not math.isnan(value) else None


def non_embedding(model: str) -> float | None:
    """Return millions of parameters in the blocks of a model of ``conf/model``, if known.

    A block has attention (``4 d^2 + 4 d``), two dense layers (``8 d^2 + 5 d``) and two norms
    (``4 d``). Norms outside the blocks and heads are left out: less than a thousandth.
    """
    if model not in SHAPES:
        return None
    d, blocks = SHAPES[model]
    return blocks * (12 * d * d + 13 * d) / 1e6


def _counted_peak(score: ScorePair) -> float | None:
    """Return the peak by Fact 6.1 of the paper's model, relative to training without privacy."""
    labels = (score.label(name) for name in ("model", "clipping", "groups"))
    return relative_peak(*map(show_label, labels))


def _machines(inputs: Inputs) -> list[str]:
    """Return the machines of the runs; nothing where no record names one."""
    machines: dict[str, None] = {}
    for run in (one for score in inputs.scores for one in score.cell.runs):
        facts = run.record.get("environment") or {}
        processor = f"{facts.get('cpu', 'machine unknown')}, {facts.get('threads', '?')} threads"
        machines[str(facts.get("gpu") or processor)] = None
    text = f"Times are of {' and of '.join(machines)}."
    if len(machines) > 1:
        text = f"WARNING: times of {len(machines)} machines, which do not compare. {text}"
    return [text] if machines else []


def styles_side_by_side(figure: Figure, inputs: Inputs) -> Content:
    """Bu et al. 2023, Figure 3: accuracy by style of ViT-large, and time of the nearest ViT."""
    listed = list(inputs.scores)
    labels = ("clipping", "groups")
    names = [[show_label(score.label(name)) for name in labels] for score in listed]
    axis = Axis("clipping groups", names=tuple(f"{style} (M={m})" for style, m in names))
    series = [
        Series("accuracy", tuple(p for p in points if p), origin, "points", legend_origin=True)
        for origin in (Origin.PRINTED, Origin.OURS)
        if any(points := [score.point(i, origin) for i, score in enumerate(listed)])
    ]
    peaks = enumerate(map(_counted_peak, listed))
    counted = tuple(FigurePoint(i, peak) for i, peak in peaks if peak is not None)
    panels = [
        Panel("accuracy, CIFAR-100, ε = 2", axis, Axis("accuracy (%)"), tuple(series)),
        Panel(
            *("memory", axis, Axis("peak by Fact 6.1 / non-private", from_zero=True)),
            (Series("counted by Fact 6.1", counted, Origin.COMPUTED, "points"),),
        ),
    ]
    usable = [b for b in inputs.benches if b.model.startswith("vit") and not b.searched]
    note = (
        "No benchmark of a ViT is available for the time: dpft bench --model vit-base --styles "
        "bk,uniform:2,uniform:4,per_layer,per_param."
    )
    if usable:
        bench = max(usable, key=lambda one: len(one.styles))
        panels.append(time_by_style(bench))
        note = f"Time: measured by dpft bench, {', '.join(bench.labels)}."
    return Content(panels, [*figure.notes, note])


def heat_maps(figure: Figure, inputs: Inputs) -> Content:
    """Return printed and ours of each table: its first label goes down, its second across."""
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
    rows = ([cells.get((y, x)) for x in xs] for y in ys)
    return Heat(
        title=f"{printed.source.split(', ')[-1]}, {origin}",
        x=_heat_axis(figure, across, xs, scores, origin),
        y=_heat_axis(figure, down, ys, scores, origin),
        label=column.label,
        cells=tuple(
            tuple(s.point(j, origin) if s else None for j, s in enumerate(row)) for row in rows
        ),
        origin=origin,
        decimals=column.decimals,
    )


def _heat_axis(
    figure: Figure, label: str, values: Sequence[Label], scores: Sequence[ScorePair], origin: Origin
) -> Axis:
    """Return the label's values; where our runs have other rates than printed, both."""
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
