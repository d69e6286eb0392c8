"""Figures of speed and memory, from files of ``dpft bench``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dpft.config.errors import ConfigError
from dpft.reproduce.figures.content import Axis, Content, Origin, Panel, Point, Series
from dpft.reproduce.figures.documents import Bench, Measured
from dpft.reproduce.figures.materials import Materials

BASELINE = "none"
UNTIED = " (untied)"
SIZES = ("tiny", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
# By their names in `dpft bench`; untied peers are compared with an untied baseline there.
LI = {
    **{"none": "non-private", "opacus (untied)": "Opacus", "opacus": "Opacus"},
    **{"flat": "gradients of records formed", "lee_kifer": "Lee and Kifer 2020"},
    **{"ghost": "ghost clipping", "bk": "book-keeping"},
}
HE = {
    **{
        "none": "non-private",
        "per_layer": "per layer",
        "per_layer_adaptive": "per layer, adaptive",
    },
    **{"ghost": "ghost clipping", "flat": "flat, gradients of records formed"},
}
_UNIFORM = "uniform:"
_COARSE = {"bk": 1, "ghost": 1, "flat": 1, "two_group": 2}
_FINE = ("block_wise", "per_layer", "per_param")


def _settings(benches: Sequence[Bench], styles: Mapping[str, str]) -> list[list[Bench]]:
    """Benchmarks that agree in all but the model, and in each those with most styles first.

    Settings with most of the figure's styles come first, then those with most models. Those without
    a private style of the figure's are left out.
    """
    groups: dict[tuple[str, ...], list[Bench]] = {}
    for bench in benches:
        groups.setdefault(bench.setting, []).append(bench)
    private = set(styles) - {BASELINE}

    def held(group: Sequence[Bench]) -> int:
        return len({style for bench in group for style in bench.styles if style in private})

    listed = [
        sorted(group, key=lambda bench: -held([bench])) for group in groups.values() if held(group)
    ]
    return sorted(listed, key=lambda group: (-held(group), -len({one.model for one in group})))


def _by_device(groups: Sequence[list[Bench]]) -> list[list[Bench]]:
    """The first group of each device."""
    found: dict[str, list[Bench]] = {}
    for group in groups:
        found.setdefault(group[0].device, group)
    return list(found.values())


def model_sizes(
    name: str,
    title: str,
    source: str,
    at_hand: Materials,
    styles: Mapping[str, str],
    place: int = 0,
) -> Content:
    """Largest batch (or memory) and throughput by model size.

    Args:
        name: of the figure.
        title: its own.
        source: in the paper.
        at_hand: its benchmarks are used.
        styles: those that are shown, with their names in the legend.
        place: which device, of those that were measured; the one whose setting has most of the
            styles, then most models, comes first.

    Raises:
        ConfigError: if there is none.
    """
    groups = _settings([bench for bench in at_hand.benches if bench.model in SIZES], styles)
    devices = _by_device(groups)
    if place >= len(devices):
        raise ConfigError(
            f"{name} needs benchmarks of GPT-2 {'on a second device, ' if place else ''}"
            f"and those at hand with its styles are of {len(devices)} devices; type "
            "dpft bench --model gpt2 --styles none,flat,ghost,per_layer --device cuda "
            "--largest-batch, and the same for gpt2-medium and gpt2-large"
        )
    group = devices[place]
    models = [model for model in SIZES if any(bench.model == model for bench in group)]
    searched = [bench for bench in group if bench.largest]
    timed = [bench for bench in group if not bench.largest]
    if searched:
        panels = [
            _panel("largest batch", "records", styles, searched, models, lambda m, base: m.batch),
            _panel("throughput at that batch", _RELATIVE, styles, searched, models, _relative),
        ]
    else:
        panels = [
            _panel("peak memory", _RELATIVE, styles, timed, models, lambda m, base: m.memory),
            _panel(
                *("throughput", _RELATIVE, styles, timed, models),
                lambda m, base: None if m.time is None else 1 / m.time,
            ),
        ]
    caption = [
        f"Measured by dpft bench: {', '.join(group[0].setting)}. Random weights; a step is "
        "forward, backward and clipping.",
        "Largest batches are searched for on a GPU (dpft bench --largest-batch)."
        if searched
        else "Without a search for the largest batch (dpft bench --largest-batch, on a GPU), "
        "memory at one batch is shown in its place.",
    ]
    if not searched and any(bench.of_process for bench in timed):
        caption.append(_OF_PROCESS)
    if any(_untied(style) for bench in group for style in bench.styles if style in styles):
        caption.append("Opacus runs with head and embedding untied, relative to non-private so.")
    if len(groups) > 1:
        caption.append(f"{len(groups) - 1} other settings were measured and are not shown here.")
    return Content(name, title, source, tuple(panels), at_hand.caption(caption))


_RELATIVE = "relative to non-private"
_OF_PROCESS = (
    "A CPU's peak memory is that of the whole process: ratios near one tell styles hardly apart."
)


def _untied(style: str) -> bool:
    return style.endswith(UNTIED)


def _relative(one: Measured, base: Measured) -> float | None:
    return None if one.speed is None or not base.speed else one.speed / base.speed


def _panel(
    title: str,
    unit: str,
    styles: Mapping[str, str],
    benches: Sequence[Bench],
    models: Sequence[str],
    value: Callable[[Measured, Measured], float | None],
) -> Panel:
    found: dict[str, dict[int, Point]] = {}
    for bench in benches:
        x = models.index(bench.model)
        for style, label in styles.items():
            name = f"{BASELINE}{UNTIED}" if _untied(style) else BASELINE
            base = bench.styles.get(name, Measured())
            number = value(bench.styles.get(style, Measured()), base)
            if number is not None:
                # Of several files of one setting the first: it has more of the styles.
                point = Point(x, number, source=bench.path.name)
                found.setdefault(label, {}).setdefault(x, point)
    series = tuple(
        Series(label, tuple(points[x] for x in sorted(points)), Origin.OURS, unsaid=True)
        for label, points in found.items()
    )
    return Panel(
        title, Axis("model", names=tuple(models)), Axis(f"{title} ({unit})", from_zero=True), series
    )


def group_count(style: str) -> tuple[int, str] | None:
    """Order and name of a style by its number of groups; None where it is of another kind."""
    if style.startswith(_UNIFORM):
        return int(style.removeprefix(_UNIFORM)), f"M = {style.removeprefix(_UNIFORM)}"
    if style in _COARSE:
        return _COARSE[style], f"M = {_COARSE[style]} ({style})"
    return (1000 + _FINE.index(style), style) if style in _FINE else None


def number_of_groups(name: str, title: str, source: str, at_hand: Materials) -> Content:
    """Bu et al. 2023, Figure 5: memory and throughput by the number of groups, of a ViT.

    Raises:
        ConfigError: if no benchmark has groups of several sizes.
    """
    usable = [bench for bench in at_hand.benches if len(_grouped(bench)) > 1 and not bench.largest]
    usable.sort(key=lambda bench: (not bench.model.startswith("vit"), -len(_grouped(bench))))
    if not usable:
        raise ConfigError(
            f"{name} needs a benchmark of several numbers of groups; type dpft bench --model "
            "vit-base --styles bk,uniform:2,uniform:3,uniform:4,uniform:6,per_layer,per_param"
        )
    bench = usable[0]
    styles = _grouped(bench)
    names = tuple(label for _, label, _ in styles)
    peaks = [(i, one.peak / 1e9) for i, (_, _, one) in enumerate(styles) if one.peak]
    speeds = [
        (i, bench.records / one.seconds) for i, (_, _, one) in enumerate(styles) if one.seconds
    ]
    base = bench.styles.get(BASELINE, Measured())
    panels = [
        _with_level(
            "peak memory", "GB", names, peaks, base.peak and base.peak / 1e9, bench.path.name
        ),
        _with_level(
            "throughput",
            "records a second",
            names,
            speeds,
            base.seconds and bench.records / base.seconds,
            bench.path.name,
        ),
    ]
    caption = [
        f"Measured by dpft bench: {', '.join(bench.labels)}.",
        "The paper's model is ViT-large-patch16-224.",
    ]
    if bench.of_process:
        caption.append(_OF_PROCESS)
    return Content(name, title, source, tuple(panels), at_hand.caption(caption))


def _grouped(bench: Bench) -> list[tuple[int, str, Measured]]:
    found: dict[int, tuple[int, str, Measured]] = {}
    for style, measured in bench.styles.items():
        place = group_count(style)
        if place is not None and measured.peak is not None:
            found.setdefault(place[0], (*place, measured))
    return [found[key] for key in sorted(found)]


def _with_level(
    title: str,
    unit: str,
    names: tuple[str, ...],
    values: Sequence[tuple[int, float]],
    level: float | None,
    source: str,
) -> Panel:
    points = tuple(Point(x, y, source=source) for x, y in values)
    series = [Series("private", points, Origin.OURS, unsaid=True)]
    if level:
        at = Point(float("nan"), level, source=source)
        series.append(Series("non-private", (at,), Origin.OURS, "level", unsaid=True))
    return Panel(
        title,
        Axis("clipping groups", names=names),
        Axis(f"{title} ({unit})", from_zero=True),
        tuple(series),
    )
