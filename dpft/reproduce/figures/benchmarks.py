"""Figures of speed and memory, from files of ``dpft bench``."""

import math
import re
from collections.abc import Callable, Iterable, Sequence

from dpft.config.errors import ConfigError
from dpft.reproduce.bench.catalog import BASELINE
from dpft.reproduce.bench.documents import UNTIED, BenchFile
from dpft.reproduce.bench.measure import Spread, VariantSummary
from dpft.reproduce.figures.catalog import Figure, Inputs
from dpft.reproduce.figures.content import Axis, Content, FigurePoint, Look, Origin, Panel, Series

SIZES = ("tiny", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
# Styles by their number of groups, those of a fixed number first.
_COARSE = {"bk": 1, "ghost": 1, "materialised": 1, "two_group": 2}
_FINE = ("block_wise", "per_layer", "per_param")
RELATIVE = "relative to non-private"
_OF_PROCESS = (
    "A CPU's peak memory is that of the whole process: ratios near one tell styles hardly apart."
)


def _ratio(above: Spread | float | None, below: Spread | float | None) -> float | None:
    """Return the ratio of medians; None where one of them was not measured."""
    first, second = (one.median if isinstance(one, Spread) else one for one in (above, below))
    return None if first is None or not second else first / second


# Title, unit, and the number of a style beside its baseline.
_Measure = tuple[str, str, Callable[[VariantSummary, VariantSummary], float | None]]
_LARGEST: tuple[_Measure, ...] = (
    ("largest batch", "records", lambda one, base: one.batch),
    (
        "throughput at that batch",
        RELATIVE,
        lambda one, base: _ratio(one.examples_per_second, base.examples_per_second),
    ),
)
_AT_ONE_BATCH: tuple[_Measure, ...] = (
    ("peak memory", RELATIVE, lambda one, base: _ratio(one.memory_ratio, 1)),
    ("throughput", RELATIVE, lambda one, base: _ratio(1, one.time_ratio)),
)


def model_sizes(figure: Figure, inputs: Inputs) -> Content:
    """Return largest batch (or memory) and throughput by model size."""
    settings = _settings(figure, inputs)
    devices: dict[str, list[BenchFile]] = {}
    for files in settings:
        # Before the last label, torch's version: see dpft.reproduce.bench.report.labels.
        hardware = files[0].labels[-2] if len(files[0].labels) > 1 else ""
        devices.setdefault(re.sub(r", \d+ threads?$", "", hardware), files)
    if figure.device >= len(devices):
        raise ConfigError(
            f"{figure.name} needs benchmarks of GPT-2 {'on a second device, ' * figure.device}"
            f"and those available with its styles are of {len(devices)} devices; type "
            "dpft bench --model gpt2 --styles none,materialised,ghost,per_layer --device cuda "
            "--largest-batch, and the same for gpt2-medium and gpt2-large"
        )
    files = list(devices.values())[figure.device]
    names = tuple(model for model in SIZES if any(file.model == model for file in files))
    searched = [file for file in files if file.searched]
    measures = _LARGEST if searched else _AT_ONE_BATCH
    panels = [_by_size(figure, searched or files, names, one) for one in measures]
    notes = [
        f"Measured by dpft bench: {', '.join(files[0].labels[1:])}. Random weights; a step is "
        "forward, backward and clipping."
    ]
    if searched:
        notes.append("Largest batches are searched for on a GPU (dpft bench --largest-batch).")
    else:
        notes.append(
            "Without a search for the largest batch (dpft bench --largest-batch, on a GPU), "
            "memory at one batch is shown in its place."
        )
        notes += [_OF_PROCESS] if any(file.device == "cpu" for file in files) else []
    if any(s.endswith(UNTIED) for file in files for s in file.styles if s in figure.styles):
        notes.append("Opacus runs with head and embedding untied, relative to non-private so.")
    if len(settings) > 1:
        notes.append(f"{len(settings) - 1} other settings were measured and are not shown here.")
    return Content(panels, notes)


def _settings(figure: Figure, inputs: Inputs) -> list[list[BenchFile]]:
    """Return benchmarks that agree in all but the model; those with most styles come first.

    Settings without a private style of the figure's are left out.
    """
    private = set(figure.styles) - {BASELINE}

    def count(*files: BenchFile) -> int:
        return len(private.intersection(style for file in files for style in file.styles))

    settings: dict[tuple[str, ...], list[BenchFile]] = {}
    for file in inputs.benches:
        if file.model in SIZES:
            settings.setdefault(file.labels[1:], []).append(file)
    usable = [sorted(s, key=lambda one: -count(one)) for s in settings.values() if count(*s)]
    return sorted(usable, key=lambda files: (-count(*files), -len({one.model for one in files})))


def _by_size(
    figure: Figure, files: Sequence[BenchFile], names: tuple[str, ...], measure: _Measure
) -> Panel:
    """Return the value of each style and its baseline, in the first file that has the style."""
    title, unit, value = measure
    series: dict[str, dict[int, FigurePoint]] = {}
    for file in files:
        x = names.index(file.model)
        for style in (style for style in figure.styles if style in file.styles):
            y = value(file.styles[style], file.baseline(style))
            if y is not None:
                points = series.setdefault(figure.styles[style], {})
                points.setdefault(x, FigurePoint(x, y, source=file.path.name))
    return Panel(
        *(title, Axis("model", names=names), Axis(f"{title} ({unit})", from_zero=True)),
        tuple(
            Series(label, tuple(points[x] for x in sorted(points)), Origin.OURS)
            for label, points in series.items()
        ),
    )


def number_of_groups(figure: Figure, inputs: Inputs) -> Content:
    """Bu et al. 2023, Figure 5: memory and throughput by the number of groups, of a ViT."""
    usable = [file for file in inputs.benches if len(_grouped(file)) > 1 and not file.searched]
    if not usable:
        raise ConfigError(
            f"{figure.name} needs a benchmark of several numbers of groups; type dpft bench "
            "--model vit-base --styles bk,uniform:2,uniform:3,uniform:4,uniform:6,per_layer,"
            "per_param"
        )
    file = max(usable, key=lambda one: (one.model.startswith("vit"), len(_grouped(one))))
    styles = _grouped(file)
    axis = Axis("clipping groups", names=tuple(styles))
    measured = [*styles.values(), file.of(BASELINE)]
    panels = []
    for title, unit, (*values, level) in (
        ("peak memory", "GB", [_ratio(one.peak_bytes, 1e9) for one in measured]),
        ("throughput", "records a second", [_ratio(file.batch, one.seconds) for one in measured]),
    ):
        series = [_by_place("private", file, values)]
        if level:
            point = FigurePoint(math.nan, level, source=file.path.name)
            series.append(Series("non-private", (point,), Origin.OURS, "level"))
        y = Axis(f"{title} ({unit})", from_zero=True)
        panels.append(Panel(title, axis, y, tuple(series)))
    notes = [f"Measured by dpft bench: {', '.join(file.labels)}.", *figure.notes]
    return Content(panels, [*notes, _OF_PROCESS] if file.device == "cpu" else notes)


def _by_place(
    label: str, file: BenchFile, values: Iterable[float | None], look: Look = "line"
) -> Series:
    points = (FigurePoint(i, y, source=file.path.name) for i, y in enumerate(values) if y)
    return Series(label, tuple(points), Origin.OURS, look)


def group_count(style: str) -> tuple[int, str] | None:
    """Return order and name of a style by its number of groups; None for another kind."""
    kind, _, count = style.partition(":")
    if kind == "uniform" and count:
        return int(count), f"M = {count}"
    if style in _COARSE:
        return _COARSE[style], f"M = {_COARSE[style]} ({style})"
    return (1000 + _FINE.index(style), style) if style in _FINE else None


def _grouped(file: BenchFile) -> dict[str, VariantSummary]:
    """Return styles with a measured peak by `group_count`'s name, the first of each number."""
    by_count: dict[int, tuple[str, VariantSummary]] = {}
    for style, measured in file.styles.items():
        place = group_count(style)
        if place is not None and measured.peak_bytes is not None:
            by_count.setdefault(place[0], (place[1], measured))
    return dict(by_count[count] for count in sorted(by_count))


def time_by_style(file: BenchFile) -> Panel:
    """Return the time of a step relative to non-private training, for every style of a file."""
    times = {
        style: _ratio(one.time_ratio, 1) for style, one in file.styles.items() if one.time_ratio
    }
    return Panel(
        f"time, {file.model}",
        Axis("style", names=tuple(times)),
        Axis("time / non-private", from_zero=True),
        (_by_place("measured", file, times.values(), "points"),),
    )
