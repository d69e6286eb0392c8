"""Figures of scores, printed and ours, against settings, sizes or times; and of benchmarks."""

import math
from statistics import fmean

from dpft.config.errors import ConfigError
from dpft.reproduce.bench.choices import BASELINE
from dpft.reproduce.bench.documents import BenchFile, Spread, VariantSummary
from dpft.reproduce.figures.catalog import Figure, Inputs, ScorePair, ScoreSeries, Table
from dpft.reproduce.figures.computed import SHAPES, relative_peak
from dpft.reproduce.figures.content import Axis, Content, FigurePoint, Heat, Origin, Panel, Series
from dpft.reproduce.papers import show_label

# Where a score may be, besides at a label of its row.
POSITIONS = ("parameters", "epochs", "minutes", "untrained", "printed_peak", "counted_peak")
# Styles by their number of groups, those of a fixed number first.
_COARSE = {"bk": 1, "ghost": 1, "materialised": 1, "two_group": 2}
_FINE = ("block_wise", "per_layer", "per_param")
_OF_PROCESS = (
    "A CPU's peak memory is that of the whole process: ratios near one hardly distinguish styles."
)


def scores(figure: Figure, inputs: Inputs) -> Content:
    """Return the figure's series in their panels; panels without numbers are left out."""
    by_panel: dict[str, list[ScoreSeries]] = {}
    for one in figure.series:
        by_panel.setdefault(one.panel, []).append(one)
    panels = []
    for title, asked in by_panel.items():
        series = tuple(
            series
            for origin in (Origin.PRINTED, Origin.OURS)
            for one in asked
            for series in _series(one, origin, inputs)
        )
        if series:
            panels.append(Panel(title, asked[0].x_axis, Axis(asked[0].y), series))
    return Content(panels, figure.notes)


def _series(asked: ScoreSeries, origin: Origin, inputs: Inputs) -> list[Series]:
    by_label: dict[str, list[FigurePoint]] = {}
    for score in inputs.scores:
        if score.column.key != asked.column or not score.row.matches(asked.where):
            continue
        labels = {name: show_label(value) for name, value in score.row.labels.items()}
        series = asked.label.format_map(labels)
        if origin is Origin.OURS and score.run is not None:
            labels["model"] = score.run.run.model.name  # next to a point, the model that ran
        x = math.nan if asked.look == "level" else _position(asked.x, score, origin, inputs)
        point = None
        if x is not None:
            point = score.point(x, origin, asked.text.format_map(labels))
        if point is not None:
            by_label.setdefault(series, []).append(point)
    return [
        Series(
            *(label, tuple(sorted(points, key=lambda p: p.x) if asked.sort else points)),
            *(origin, asked.look),
        )
        for label, points in by_label.items()
    ]


def _position(x: str, score: ScorePair, origin: Origin, inputs: Inputs) -> float | None:
    """Return the place of a score: at one of `POSITIONS`, or at a label of its row.

    Nothing is known of printed minutes; ``untrained`` is our accuracy of the same label words.
    """
    labels, run = score.row.labels, None if score.run is None else score.run.run
    if x == "parameters":
        if origin is Origin.PRINTED:  # as printed: RoBERTa-base, GPT-2-medium
            return non_embedding(str(labels.get("model")).lower().replace("gpt-2", "gpt2"))
        return None if run is None else non_embedding(run.model.name)
    if x == "epochs" and origin is Origin.OURS:
        return None if run is None else run.optim.epochs
    if x == "minutes":
        if origin is Origin.PRINTED or not score.cell.runs:
            return None
        return fmean(float(one.record["training"]["seconds"]) for one in score.cell.runs) / 60
    if x == "untrained":
        wanted = {"words": (labels.get("words"),), "training": ("zero-shot",)}
        return next((one.cell.ours for one in inputs.scores if one.row.matches(wanted)), None)
    if x == "counted_peak":
        names = (labels.get(name) for name in ("model", "clipping", "groups"))
        return relative_peak(*map(show_label, names))
    value = score.row.printed.get("peak_memory_gb") if x == "printed_peak" else labels.get(x)
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


def heat_maps(figure: Figure, inputs: Inputs) -> Content:
    """Return printed and ours of each table: its first label goes down, its second across."""
    panels = [
        _map(table, origin)
        for table in inputs.tables
        for origin in (Origin.PRINTED, Origin.OURS)
        if any(score.value(origin) is not None for score in table.scores)
    ]
    names = ", ".join(table.printed.name for table in inputs.tables)
    notes = (
        f"What is inferred, and what disagrees: dpft table {names}.",
        "Each map has its own range of colours. Dots are cells without a run.",
    )
    return Content(panels, notes, columns=2)


def _map(table: Table, origin: Origin) -> Heat:
    # The laptop's scale leaves whole rows and columns out: they would be empty.
    scores = [one for one in table.scores if origin is Origin.PRINTED or one.run is not None]
    down, across = table.printed.label_names
    ys, xs = ([*dict.fromkeys(one.row.labels[name] for one in scores)] for name in (down, across))
    cells = {(one.row.labels[down], one.row.labels[across]): one for one in scores}
    column = table.printed.columns[0]
    rows = ([cells.get((y, x)) for x in xs] for y in ys)
    return Heat(
        title=f"{table.printed.source.split(', ')[-1]}, {origin}",
        x=Axis(across, names=tuple(map(show_label, xs))),
        y=Axis(down, names=tuple(map(show_label, ys))),
        label=column.label,
        cells=tuple(
            tuple(s.point(j, origin) if s else None for j, s in enumerate(row)) for row in rows
        ),
        origin=origin,
        decimals=column.decimals,
    )


def _ratio(above: Spread | float | None, below: Spread | float | None) -> float | None:
    """Return the ratio of medians; None where one of them was not measured."""
    first, second = (one.median if isinstance(one, Spread) else one for one in (above, below))
    return None if first is None or not second else first / second


def number_of_groups(figure: Figure, inputs: Inputs) -> Content:
    """Bu et al. 2023, Figure 5: memory and throughput by the number of groups, of a ViT."""
    usable = [file for file in inputs.benches if len(_grouped(file)) > 1]
    if not usable:
        raise ConfigError(
            f"{figure.name} needs a benchmark of several numbers of groups; type dpft bench "
            "--model vit-base --styles bk,uniform:2,uniform:3,uniform:4,uniform:6,per_layer,"
            "per_param"
        )
    file = max(usable, key=lambda one: (one.model.startswith("vit"), len(_grouped(one))))
    styles = _grouped(file)
    measured = [*styles.values(), file.of(BASELINE)]
    panels = []
    for title, unit, (*values, level) in (
        ("peak memory", "GB", [_ratio(one.peak_bytes, 1e9) for one in measured]),
        ("throughput", "records a second", [_ratio(file.batch, one.seconds) for one in measured]),
    ):
        points = (FigurePoint(i, y, source=file.path.name) for i, y in enumerate(values) if y)
        series = [Series("private", tuple(points), Origin.OURS)]
        if level:
            point = FigurePoint(math.nan, level, source=file.path.name)
            series.append(Series("non-private", (point,), Origin.OURS, "level"))
        x, y = (
            Axis("clipping groups", names=tuple(styles)),
            Axis(f"{title} ({unit})", from_zero=True),
        )
        panels.append(Panel(title, x, y, tuple(series)))
    notes = [f"Measured by dpft bench: {', '.join(file.labels)}.", *figure.notes]
    return Content(panels, [*notes, _OF_PROCESS] if file.device == "cpu" else notes)


def _grouped(file: BenchFile) -> dict[str, VariantSummary]:
    """Return styles with a measured peak by their number of groups, the first of each number."""
    by_count: dict[int, tuple[str, VariantSummary]] = {}
    for style, measured in file.styles.items():
        kind, _, number = style.partition(":")
        if kind == "uniform" and number:
            count, name = int(number), f"M = {number}"
        elif style in _COARSE:
            count, name = _COARSE[style], f"M = {_COARSE[style]} ({style})"
        elif style in _FINE:
            count, name = 1000 + _FINE.index(style), style
        else:
            continue
        if measured.peak_bytes is not None:
            by_count.setdefault(count, (name, measured))
    return dict(by_count[count] for count in sorted(by_count))
