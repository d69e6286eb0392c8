"""Figures of speed and memory, from files of ``dpft bench``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

from dpft.config.errors import ConfigError
from dpft.reproduce.bench.catalog import BASELINE
from dpft.reproduce.bench.documents import UNTIED, BenchFile, Measured
from dpft.reproduce.bench.statistics import Spread
from dpft.reproduce.figures.catalog import Figure
from dpft.reproduce.figures.content import Axis, Built, Look, Origin, Panel, Point, Series
from dpft.reproduce.figures.inputs import Inputs

SIZES = ("tiny", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
# Styles by their number of groups, those of a fixed number first.
_COARSE = {"bk": 1, "ghost": 1, "flat": 1, "two_group": 2}
_FINE = ("block_wise", "per_layer", "per_param")
_Value = Callable[[BenchFile, str], float | None]
_RELATIVE = "relative to non-private"
_OF_PROCESS = (
    "A CPU's peak memory is that of the whole process: ratios near one tell styles hardly apart."
)


def model_sizes(figure: Figure, inputs: Inputs) -> Built:
    """Largest batch (or memory) and throughput by model size.

    Benchmarks that agree in all but the model are one setting. Of each device that setting is used
    which has most of the figure's styles, then most models; devices come in the same order.

    Raises:
        ConfigError: if fewer devices were measured than the figure asks for.
    """
    private = set(figure.styles) - {BASELINE}

    def count(files: Iterable[BenchFile]) -> int:
        return len(private.intersection(style for file in files for style in file.styles))

    settings: dict[tuple[str, ...], list[BenchFile]] = {}
    for file in inputs.benches:
        if file.model in SIZES:
            settings.setdefault(file.labels[1:], []).append(file)
    usable = [files for files in settings.values() if count(files)]
    usable.sort(key=lambda files: (-count(files), -len({file.model for file in files})))
    devices: dict[str, list[BenchFile]] = {}
    for files in usable:
        devices.setdefault(_hardware(files[0]), files)
    if figure.device >= len(devices):
        raise ConfigError(
            f"{figure.name} needs benchmarks of GPT-2 {'on a second device, ' * figure.device}"
            f"and those at hand with its styles are of {len(devices)} devices; type "
            "dpft bench --model gpt2 --styles none,flat,ghost,per_layer --device cuda "
            "--largest-batch, and the same for gpt2-medium and gpt2-large"
        )
    # Of several files with one style the first counts: it has more of the styles.
    chosen = sorted(list(devices.values())[figure.device], key=lambda file: -count([file]))
    searched = [file for file in chosen if file.searched]
    asked: tuple[tuple[str, str, _Value], ...] = (
        ("peak memory", _RELATIVE, lambda file, style: _median(file.styles[style].memory)),
        ("throughput", _RELATIVE, lambda file, style: _inverse(file.styles[style].time)),
    )
    if searched:
        asked = (
            ("largest batch", "records", lambda file, style: file.styles[style].batch),
            ("throughput at that batch", _RELATIVE, _relative_speed),
        )
    names = tuple(model for model in SIZES if any(file.model == model for file in chosen))
    panels = [_by_size(figure, searched or chosen, names, *one) for one in asked]
    notes = [
        f"Measured by dpft bench: {', '.join(chosen[0].labels[1:])}. Random weights; a step is "
        "forward, backward and clipping.",
        "Largest batches are searched for on a GPU (dpft bench --largest-batch)."
        if searched
        else "Without a search for the largest batch (dpft bench --largest-batch, on a GPU), "
        "memory at one batch is shown in its place.",
    ]
    if not searched and any(file.device == "cpu" for file in chosen):
        notes.append(_OF_PROCESS)
    if any(s.endswith(UNTIED) for file in chosen for s in file.styles if s in figure.styles):
        notes.append("Opacus runs with head and embedding untied, relative to non-private so.")
    if len(usable) > 1:
        notes.append(f"{len(usable) - 1} other settings were measured and are not shown here.")
    return Built(panels, notes)


def _hardware(file: BenchFile) -> str:
    """The GPU or CPU, however many threads of it were used."""
    # Before the last, torch's version: see dpft.reproduce.bench.report.labels.
    return re.sub(r", \d+ threads?$", "", file.labels[-2]) if len(file.labels) > 1 else ""


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def _inverse(spread: Spread | None) -> float | None:
    return None if spread is None else 1 / spread.median


def _relative_speed(file: BenchFile, style: str) -> float | None:
    speed, base = file.styles[style].speed, file.baseline(style).speed
    return None if speed is None or not base else speed / base


def _by_size(
    figure: Figure,
    files: Sequence[BenchFile],
    names: tuple[str, ...],
    title: str,
    unit: str,
    value: _Value,
) -> Panel:
    series: dict[str, dict[int, Point]] = {}
    for file in files:
        x = names.index(file.model)
        for style in (style for style in figure.styles if style in file.styles):
            y = value(file, style)
            if y is not None:
                points = series.setdefault(figure.styles[style], {})
                points.setdefault(x, Point(x, float(y), source=file.path.name))
    return Panel(
        *(title, Axis("model", names=names), Axis(f"{title} ({unit})", from_zero=True)),
        tuple(
            Series(label, tuple(points[x] for x in sorted(points)), Origin.OURS)
            for label, points in series.items()
        ),
    )


def number_of_groups(figure: Figure, inputs: Inputs) -> Built:
    """Bu et al. 2023, Figure 5: memory and throughput by the number of groups, of a ViT.

    Raises:
        ConfigError: if no benchmark has groups of several sizes.
    """
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

    def peak(one: Measured) -> float | None:
        return None if one.peak is None else one.peak.median / 1e9

    def speed(one: Measured) -> float | None:
        return None if one.seconds is None else file.batch / one.seconds.median

    panels = []
    for title, unit, value in (
        ("peak memory", "GB", peak),
        ("throughput", "records a second", speed),
    ):
        series = [_by_place("private", file, map(value, styles.values()))]
        level = value(file.styles.get(BASELINE, Measured()))
        if level:
            point = Point(math.nan, level, source=file.path.name)
            series.append(Series("non-private", (point,), Origin.OURS, "level"))
        y = Axis(f"{title} ({unit})", from_zero=True)
        panels.append(Panel(title, axis, y, tuple(series)))
    notes = [f"Measured by dpft bench: {', '.join(file.labels)}.", *figure.notes]
    return Built(panels, [*notes, _OF_PROCESS] if file.device == "cpu" else notes)


def _by_place(
    label: str, file: BenchFile, values: Iterable[float | None], look: Look = "line"
) -> Series:
    points = (Point(i, y, source=file.path.name) for i, y in enumerate(values) if y)
    return Series(label, tuple(points), Origin.OURS, look)


def group_count(style: str) -> tuple[int, str] | None:
    """Order and name of a style by its number of groups; None where it is of another kind."""
    kind, _, count = style.partition(":")
    if kind == "uniform" and count:
        return int(count), f"M = {count}"
    if style in _COARSE:
        return _COARSE[style], f"M = {_COARSE[style]} ({style})"
    return (1000 + _FINE.index(style), style) if style in _FINE else None


def _grouped(file: BenchFile) -> dict[str, Measured]:
    """Styles with a measured peak by `group_count`'s name, the first of each number."""
    by_count: dict[int, tuple[str, Measured]] = {}
    for style, measured in file.styles.items():
        place = group_count(style)
        if place is not None and measured.peak is not None:
            by_count.setdefault(place[0], (place[1], measured))
    return dict(by_count[count] for count in sorted(by_count))


def time_by_style(file: BenchFile) -> Panel:
    """Time of a step relative to non-private training, for every style of a file."""
    times = {style: _median(one.time) for style, one in file.styles.items() if one.time}
    return Panel(
        f"time, {file.model}",
        Axis("style", names=tuple(times)),
        Axis("time / non-private", from_zero=True),
        (_by_place("measured", file, times.values(), "points"),),
    )
