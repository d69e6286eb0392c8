"""Space that activations and output gradients take along a step (Bu et al. 2023, Fact 6.1).

Layer ``l`` keeps its input, ``T_l d_l`` numbers a record, from its forward until its gradient is
formed. Its output gradient, ``T_l p_l`` numbers, is kept from the layer's backward until the first
layer of its group is reached, where the group's norms are known and its sums are formed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PATCHES, PIXELS = 196, 3 * 16 * 16
# Width and number of blocks of the papers' models, and of those that stand in for them.
SHAPES: Mapping[str, tuple[int, int]] = {
    **{"gpt2-0.8m": (96, 3), "gpt2-3m": (192, 5), "gpt2-12m": (384, 6)},  # of the ladder
    **{"tiny": (128, 2), "minilm": (384, 6), "distilgpt2": (768, 6), "gpt2": (768, 12)},
    **{"gpt2-medium": (1024, 24), "gpt2-large": (1280, 36), "gpt2-xl": (1600, 48)},
    **{"bert-base": (768, 12), "bert-large": (1024, 24)},
    **{"roberta-base": (768, 12), "roberta-large": (1024, 24)},
    **{"vit-small": (384, 12), "vit-large": (1024, 24)},
}


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


def relative_peak(model: str, clipping: str, groups: str) -> float | None:
    """The largest peak over that of training without privacy; None for other groupings.

    Args:
        model: as the paper prints it, ``ViT-large``.
        clipping: the table's word for the grouping.
        groups: how many, as printed.
    """
    kind = model.lower()
    layers = (vit if kind.startswith("vit") else encoder)(*SHAPES[kind])
    if clipping.startswith("all-layer"):
        chosen = boundaries(layers, [])
    elif clipping in ("layer-wise", "param-wise"):  # weight and bias share a layer's tensors
        chosen = each(layers)
    elif clipping in ("uniform", "block-wise") and groups.isdecimal():
        chosen = uniform(layers, int(groups))
    elif clipping == "non-uniform":
        # As bu2023/4 has it: the best cut of the paper's Table 3, after 10 of 12 blocks.
        chosen = boundaries(layers, [(layers[-1].block + 1) * 10 // 12])
    else:
        return None
    return peak(layers, chosen) / peak(layers, None)
