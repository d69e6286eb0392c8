"""Space that activations and output gradients take along a step (Bu et al. 2023, Fact 6.1).

Layer ``l`` keeps its input, ``T_l d_l`` numbers a record, from its forward until its gradient is
formed. Its output gradient, ``T_l p_l`` numbers, is kept from the layer's backward until the first
layer of its group is reached, where the group's norms are known and its sums are formed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from dpft.reproduce.figures.content import Axis, Content, Origin, Panel, Point, Series

BATCH = 32
BYTES = 4  # of a number in float32
PATCHES, PIXELS = 196, 3 * 16 * 16


@dataclass(frozen=True)
class Layer:
    """A layer of ``T`` positions with ``d`` inputs and ``p`` outputs each.

    Attributes:
        T: positions of a record.
        d: numbers that it keeps of each.
        p: numbers of the output gradient at each.
        block: the repeated block that it belongs to; what lies before or after all belongs to
            the first or the last.
    """

    T: int
    d: int
    p: int
    block: int


def vit(width: int, blocks: int, classes: int = 100) -> tuple[Layer, ...]:
    """A ViT with patches of 16 of 224 pixels, query, key and value in one layer, as in timm.

    The class token is one position more; the head reads that one alone.
    """
    T = PATCHES + 1
    layers = [Layer(PATCHES, PIXELS, width, 0)]
    for block in range(blocks):
        layers += [
            Layer(T, width, width, block),  # norm
            Layer(T, width, 3 * width, block),  # query, key, value
            Layer(T, width, width, block),
            Layer(T, width, width, block),  # norm
            Layer(T, width, 4 * width, block),
            Layer(T, 4 * width, width, block),
        ]
    return (*layers, Layer(T, width, width, blocks - 1), Layer(1, width, classes, blocks - 1))


def encoder(width: int, blocks: int, T: int = 128) -> tuple[Layer, ...]:
    """RoBERTa without its head: embeddings and their norm, then blocks with query apart from key.

    Embeddings keep one index a position.
    """
    layers = [*[Layer(T, 1, width, 0)] * 3, Layer(T, width, width, 0)]
    for block in range(blocks):
        layers += [Layer(T, width, width, block)] * 5  # query, key, value, output, norm
        layers += [Layer(T, width, 4 * width, block), Layer(T, 4 * width, width, block)]
        layers.append(Layer(T, width, width, block))
    return tuple(layers)


def uniform(layers: Sequence[Layer], count: int) -> tuple[tuple[int, int], ...]:
    """``count`` groups of as many blocks each, as ``[first, last)`` layers.

    Raises:
        ValueError: if the blocks do not divide.
    """
    blocks = layers[-1].block + 1
    if count < 1 or blocks % count:
        raise ValueError(f"got {count} groups of {blocks} blocks; expected a divisor of {blocks}")
    return boundaries(layers, [k * blocks // count for k in range(1, count)])


def boundaries(layers: Sequence[Layer], cuts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Groups that begin at the first layer and at each of the blocks ``cuts``."""
    starts = [0, *(next(i for i, layer in enumerate(layers) if layer.block == c) for c in cuts)]
    return tuple(itertools.pairwise([*starts, len(layers)]))


def each(layers: Sequence[Layer]) -> tuple[tuple[int, int], ...]:
    """Every layer a group."""
    return tuple((i, i + 1) for i in range(len(layers)))


def backward(
    layers: Sequence[Layer], groups: Sequence[tuple[int, int]], private: bool = True
) -> list[int]:
    """Numbers kept for one record as the backward reaches each layer, the last layer first.

    Args:
        layers: in the order of the forward.
        groups: ``[first, last)`` of each, in that order.
        private: False: a gradient is formed and freed as its layer is reached.
    """
    kept = [0, *itertools.accumulate(layer.T * layer.d for layer in layers)]
    sizes: list[int] = []
    for first, last in reversed(groups):
        gradients = 0
        for l in range(last - 1, first - 1, -1):  # noqa: E741 (the paper's letter)
            own = layers[l].T * layers[l].p
            gradients += own
            sizes.append(kept[last] + gradients if private else kept[l + 1] + own)
    return sizes


def peaks(layers: Sequence[Layer], groups: Sequence[tuple[int, int]]) -> list[int]:
    """Fact 6.1: numbers kept for one record as the backward reaches each group's first layer.

    ``sum_{l <= last} T_l d_l + sum_{first <= r <= last} T_r p_r``, the first group first.
    """
    return [
        sum(x.T * x.d for x in layers[:last]) + sum(x.T * x.p for x in layers[first:last])
        for first, last in groups
    ]


def peak(layers: Sequence[Layer], groups: Sequence[tuple[int, int]] | None) -> int:
    """The largest of a step, for one record; ``groups`` None: without privacy."""
    whole = ((0, len(layers)),)
    return max(backward(layers, whole, False) if groups is None else peaks(layers, groups))


def profile(name: str, title: str, source: str) -> Content:
    """Bu et al. 2023, Figure 4, for ViT-large with patches of 16, 224 pixels, batch 32."""
    layers = vit(1024, 24)
    forward = list(itertools.accumulate(layer.T * layer.d for layer in layers))
    whole, fine = ((0, len(layers)),), each(layers)
    styles = (
        ("all layers, M = 1", backward(layers, whole)),
        ("uniform groups, M = 4", backward(layers, uniform(layers, 4))),
        (f"per layer, M = {len(layers)}", backward(layers, fine)),
        ("non-private", backward(layers, whole, False)),
    )
    unit = BATCH * BYTES / 1e9
    series = []
    for label, sizes in styles:
        values = [unit * size for size in (*forward, *sizes)]
        points = tuple(Point(i, value) for i, value in enumerate(values, 1))
        series.append(Series(label, points, Origin.COMPUTED, unsaid=True))
    turn = Series(
        "the backward begins", (Point(len(layers) + 0.5, 0.0),), Origin.COMPUTED, "verticals", True
    )
    panel = Panel(
        f"ViT-large-patch16-224, batch {BATCH}, float32",
        Axis(f"layer: {len(layers)} forward, then {len(layers)} backward"),
        Axis("kept activations and output gradients (GB)", from_zero=True),
        (*series, turn),
    )
    told = ", ".join(f"{label}: {unit * max((*forward, *sizes)):.2f} GB" for label, sizes in styles)
    caption = (
        f"Counted by Fact 6.1, not measured. Peaks: {told}.",
        "Each layer keeps its input until its gradient is formed and its output gradient until "
        "its group is complete. One group per layer keeps as much as training without privacy "
        "(the two curves coincide). Attention weights, activation functions, parameters and "
        "optimizer are left out.",
        "Layers as in timm, with query, key and value in one, which gives the paper's 147; the "
        "head has 100 classes.",
    )
    return Content(name, title, source, (panel,), caption)
