"""Figures of speed and memory, from files of ``dpft bench``."""

import math

from dpft.config.errors import ConfigError
from dpft.reproduce.bench.choices import BASELINE
from dpft.reproduce.bench.documents import BenchFile, Spread, VariantSummary
from dpft.reproduce.figures.catalog import Figure, Inputs
from dpft.reproduce.figures.content import Axis, Content, FigurePoint, Origin, Panel, Series

# Styles by their number of groups, those of a fixed number first.
_COARSE = {"bk": 1, "ghost": 1, "materialised": 1, "two_group": 2}
_FINE = ("block_wise", "per_layer", "per_param")
_OF_PROCESS = (
    "A CPU's peak memory is that of the whole process: ratios near one hardly distinguish styles."
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
