"""Accuracy against memory by clipping groups (Bu et al. 2023, Figures 1, 3 and 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dpft.reproduce.figures import memory
from dpft.reproduce.figures.content import Axis, Content, Origin, Panel, Point, Series
from dpft.reproduce.figures.documents import Bench, Measured
from dpft.reproduce.figures.materials import Materials, Spot
from dpft.reproduce.figures.memory import Layer
from dpft.reproduce.figures.points import letters_of

Groups = tuple[tuple[int, int], ...]
# Width and blocks of the printed models.
_VIT = {"ViT-small": (384, 12), "ViT-large": (1024, 24)}
_ENCODER = {"RoBERTa-base": (768, 12), "RoBERTa-large": (1024, 24)}
_BY_FACT = "peak by Fact 6.1 / non-private"


def layers_of(model: str) -> tuple[Layer, ...]:
    """The layers of a printed model.

    Raises:
        KeyError: for another one.
    """
    return memory.vit(*_VIT[model]) if model in _VIT else memory.encoder(*_ENCODER[model])


def relative_peak(model: str, clipping: str, groups: object) -> float | None:
    """Fact 6.1's largest peak over that of training without privacy; None for other groupings.

    Args:
        model: as printed.
        clipping: the table's word for the grouping.
        groups: how many, as printed.
    """
    layers = layers_of(model)
    chosen: Groups
    if clipping.startswith("all-layer"):
        chosen = ((0, len(layers)),)
    elif clipping in ("layer-wise", "param-wise"):  # weight and bias share a layer's tensors
        chosen = memory.each(layers)
    elif clipping in ("uniform", "block-wise") and isinstance(groups, int | float):
        chosen = memory.uniform(layers, int(groups))
    elif clipping == "non-uniform":
        # As bu2023/4 has it: the best cut of the paper's Table 3, after 10 of 12 blocks.
        chosen = memory.boundaries(layers, [(layers[-1].block + 1) * 10 // 12])
    else:
        return None
    return memory.peak(layers, chosen) / memory.peak(layers, None)


def styles_by_memory(name: str, title: str, source: str, at_hand: Materials) -> Content:
    """Figure 1: printed accuracies and ours, over the memory that Fact 6.1 counts."""
    panels = []
    for part, (dataset, column) in zip(
        at_hand.parts,
        (("CIFAR-100, ε = 2", "cifar100_acc"), ("QNLI, ε = 3", "qnli_acc")),
        strict=True,
    ):
        spots = [spot for spot in part.spots if spot.column.key == column]
        series = []
        for origin in (Origin.PRINTED, Origin.OURS):
            for model in dict.fromkeys(str(spot.label("model")) for spot in spots):
                found = [_placed(spot, origin) for spot in spots if spot.label("model") == model]
                points = tuple(point for point in found if point is not None)
                if points:
                    series.append(Series(model, points, origin))
        panels.append(Panel(dataset, Axis(_BY_FACT), Axis("accuracy (%)"), tuple(series)))
    caption = at_hand.caption(
        [
            "From right to left more groups. Beside each point its number of groups M, as printed. "
            "Ours stand at the place of the paper's model.",
            "Memory is counted by Fact 6.1 (activations and output gradients; see bu2023/4), not "
            "measured: the memory of the paper's figure did not come down to us. Weight and bias "
            "of a layer take as much as the layer, so one group per layer and one per parameter "
            "stand above each other. Without RoBERTa's output head.",
            "The tables have no ViT-base and no uniform groups of QNLI.",
        ],
        letters_of(panels),
    )
    return Content(name, title, source, tuple(panels), caption)


def _placed(spot: Spot, origin: Origin) -> Point | None:
    groups = spot.label("groups")
    x = relative_peak(str(spot.label("model")), str(spot.label("clipping")), groups)
    point = None if x is None else spot.point(x, origin)
    if point is None:
        return None
    return replace(point, label=f"{groups:g}" if isinstance(groups, int | float) else "")


def styles_side_by_side(name: str, title: str, source: str, at_hand: Materials) -> Content:
    """Figure 3: accuracy by style of ViT-large; memory and time of the nearest ViT measured."""
    (part,) = at_hand.parts
    spots = [spot for spot in part.spots if spot.column.key == "cifar100_acc"]
    names = tuple(f"{spot.label('clipping')} (M={spot.label('groups'):g})" for spot in spots)
    series = []
    for origin in (Origin.PRINTED, Origin.OURS):
        found = [spot.point(place, origin) for place, spot in enumerate(spots)]
        points = tuple(p for p in found if p is not None)
        if points:
            series.append(Series("accuracy", points, origin, "points"))
    axis = Axis("clipping groups", names=names)
    panels = [Panel("accuracy, CIFAR-100, ε = 2", axis, Axis("accuracy (%)"), tuple(series))]
    counted = [
        relative_peak("ViT-large", str(spot.label("clipping")), spot.label("groups"))
        for spot in spots
    ]
    panels.append(
        Panel(
            "memory",
            axis,
            Axis(_BY_FACT, from_zero=True),
            (
                Series(
                    "counted by Fact 6.1",
                    tuple(Point(i, x) for i, x in enumerate(counted) if x is not None),
                    Origin.COMPUTED,
                    "points",
                    unsaid=True,
                ),
            ),
        )
    )
    caption = ["Memory of ViT-large is counted by Fact 6.1 (see bu2023/4), not measured."]
    bench = _nearest(at_hand.benches, "vit")
    if bench is not None:
        panels.append(_measured("time", bench, lambda one: one.time))
        caption.append(f"Time: measured by dpft bench, {', '.join(bench.labels)}.")
    else:
        caption.append(
            "No benchmark of a ViT is at hand for the time: dpft bench --model vit-base --styles "
            "bk,uniform:2,uniform:4,per_layer,per_param."
        )
    return Content(name, title, source, tuple(panels), at_hand.caption(caption, letters_of(panels)))


def _nearest(benches: Sequence[Bench], family: str) -> Bench | None:
    usable = [b for b in benches if b.model.startswith(family) and not b.largest]
    return max(usable, key=lambda bench: len(bench.styles), default=None)


def _measured(title: str, bench: Bench, value: Callable[[Measured], float | None]) -> Panel:
    shown = [(style, value(one)) for style, one in bench.styles.items()]
    known = [(style, number) for style, number in shown if number is not None]
    points = tuple(Point(i, number, source=bench.path.name) for i, (_, number) in enumerate(known))
    return Panel(
        f"{title}, {bench.model}",
        Axis("style", names=tuple(style for style, _ in known)),
        Axis(f"{title} / non-private", from_zero=True),
        (Series("measured", points, Origin.OURS, "points", unsaid=True),),
    )


def boundaries_by_memory(name: str, title: str, source: str, at_hand: Materials) -> Content:
    """Figure 6: two groups cut at several places, and one group, over the printed peak memory."""
    (part,) = at_hand.parts
    spots = list(part.spots)
    panels = []
    for dataset, column in (("CIFAR-100", "cifar100_acc"), ("QNLI", "qnli_acc")):
        printed = {
            spot.label("boundary"): spot.printed
            for spot in spots
            if spot.label("dataset") == dataset and spot.column.key == "peak_memory_gb"
        }
        series = []
        for origin in (Origin.PRINTED, Origin.OURS):
            found: dict[str, list[Point]] = {}
            for spot in spots:
                if spot.label("dataset") != dataset or spot.column.key != column:
                    continue
                boundary = spot.label("boundary")
                x = printed.get(boundary)
                point = None if x is None else spot.point(x, origin)
                if point is not None:
                    cut = str(boundary).removesuffix(" (uniform)")
                    found.setdefault(_kind(str(boundary)), []).append(
                        replace(point, label=cut if cut.isdigit() else "")
                    )
            series += [
                Series(kind, tuple(listed), origin, "points") for kind, listed in found.items()
            ]
        axis = Axis("peak memory, printed (GB)")
        panels.append(Panel(dataset, axis, Axis("accuracy (%)"), tuple(series)))
    caption = at_hand.caption(
        [
            "The number beside a point is the block at which the second group begins, of 12 "
            "(docs/how-to/tables.md, bu2023/3). Memory is the paper's in both: "
            "ours was not measured."
        ],
        letters_of(panels),
    )
    return Content(name, title, source, tuple(panels), caption)


def _kind(boundary: str) -> str:
    if boundary.startswith("all-layer"):
        return "all layers, M = 1"
    if "uniform" in boundary:
        return "uniform, M = 2"
    return "two groups, not uniform" if boundary.isdigit() else "non-private"
