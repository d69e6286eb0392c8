"""Figures that follow from accounting or counting alone: no run, no data.

The space that activations and output gradients take along a step is Fact 6.1 of Bu et al. 2023:
layer ``l`` keeps its input, ``T_l d_l`` numbers a record, from its forward until its gradient is
formed. Its output gradient, ``T_l p_l`` numbers, is kept from the layer's backward until the first
layer of its group is reached, where the group's norms are known and its sums are formed.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpft.privacy.accounting import calibrate_noise
from dpft.reproduce.figures.catalog import Figure, Inputs
from dpft.reproduce.figures.content import Axis, Content, FigurePoint, Origin, Panel, Series

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
    """A layer of ``T`` positions with ``d`` inputs and ``p`` outputs each, in a repeated block."""

    T: int
    d: int
    p: int
    block: int


def vit(width: int, blocks: int, classes: int = 100) -> tuple[Layer, ...]:
    """Return a ViT with patches of 16 of 224 pixels, query, key and value in one layer, as in timm.

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
    """Return RoBERTa without its head; embeddings keep one index a position."""
    layers = [*[Layer(T, 1, width, 0)] * 3, Layer(T, width, width, 0)]
    for block in range(blocks):
        layers += [Layer(T, width, width, block)] * 5  # query, key, value, output, norm
        layers += [Layer(T, width, 4 * width, block), Layer(T, 4 * width, width, block)]
        layers.append(Layer(T, width, width, block))
    return tuple(layers)


def uniform(layers: Sequence[Layer], count: int) -> tuple[tuple[int, int], ...]:
    """Return ``count`` groups of as many blocks each, as ``[first, last)`` layers."""
    blocks = layers[-1].block + 1
    if count < 1 or blocks % count:
        raise ValueError(f"got {count} groups of {blocks} blocks; expected a divisor of {blocks}")
    return boundaries(layers, [k * blocks // count for k in range(1, count)])


def boundaries(layers: Sequence[Layer], cuts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return groups that begin at the first layer and at each of the blocks ``cuts``."""
    starts = [0, *(next(i for i, layer in enumerate(layers) if layer.block == c) for c in cuts)]
    return tuple(itertools.pairwise([*starts, len(layers)]))


def each(layers: Sequence[Layer]) -> tuple[tuple[int, int], ...]:
    """Return every layer as a group."""
    return tuple((i, i + 1) for i in range(len(layers)))


def backward(
    layers: Sequence[Layer], groups: Sequence[tuple[int, int]], private: bool = True
) -> list[int]:
    """Return the numbers kept for a record as the backward reaches each layer, the last one first.

    Where ``private`` is False, a gradient is formed and freed as its layer is reached.
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
    """Return by Fact 6.1 the numbers kept as the backward reaches each group's end, in order."""
    return [
        sum(x.T * x.d for x in layers[:last]) + sum(x.T * x.p for x in layers[first:last])
        for first, last in groups
    ]


def peak(layers: Sequence[Layer], groups: Sequence[tuple[int, int]] | None) -> int:
    """Return the largest peak of a step, for one record; ``groups`` None: without privacy."""
    whole = ((0, len(layers)),)
    return max(backward(layers, whole, False) if groups is None else peaks(layers, groups))


def relative_peak(model: str, clipping: str, groups: str) -> float | None:
    """Return the largest peak over that of training without privacy; None for other groupings.

    Both are by Fact 6.1 of the paper's model.
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


EPSILON, DELTA = 3.0, 1e-5
# Of Li et al. 2022, Figure 6.
RECORDS, EPOCHS = 50_000, 50
EXPONENTS = tuple(-12 + 0.5 * k for k in range(21))
# Of Figure 3(a) neither the budget nor the numbers of steps came down to us.
STEPS = (100, 400, 1600, 6400)
RATES = tuple(10 ** (-4 + 0.25 * k) for k in range(17))
# Of Bu et al. 2023, Figure 4; bytes are those of a number in float32.
BATCH, BYTES = 32, 4

_LEAST = f"whose ε by Renyi DP (improved conversion) is at most {EPSILON:g}"


def noise_by_rate(
    figure: Figure, inputs: Inputs, exponents: Sequence[float] = EXPONENTS
) -> Content:
    """Li et al. 2022, Figure 6: the noise that is needed, and ``sigma = c sqrt(q)``."""
    rates = [2.0**k for k in exponents]
    sigmas = [least_noise(rate, round(EPOCHS / rate)) for rate in rates]
    c = sigmas[-1] / math.sqrt(rates[-1])
    panel = Panel(
        f"(ε, δ) = ({EPSILON:g}, 1e-5), N = {RECORDS:,}, {EPOCHS} epochs",
        Axis("sampling rate q = B/N", "log2"),
        Axis("noise multiplier σ", "log2"),
        (
            _curve("computed (Renyi DP)", rates, sigmas),
            _curve(f"square-root rule, {c:.2f} √q", rates, [c * math.sqrt(q) for q in rates]),
        ),
    )
    notes = (
        f"Computed: the least σ {_LEAST} after {EPOCHS}/q steps, under Poisson sampling.",
        f"The rule's constant is not printed: c = {c:.3f} makes both meet at q = "
        f"2^{exponents[-1]:g}, the largest rate shown. Below q = 2^-8 it asks for clearly less "
        "noise than is needed.",
    )
    return Content([panel], notes)


def effective_noise(
    figure: Figure, inputs: Inputs, steps: Sequence[int] = STEPS, rates: Sequence[float] = RATES
) -> Content:
    """Li et al. 2022, Figure 3(a): ``sigma / q`` by sampling rate at fixed numbers of steps."""
    panel = Panel(
        f"(ε, δ) = ({EPSILON:g}, 1e-5)",
        Axis("sampling rate q", "log"),
        Axis("effective noise multiplier σ/q", "log"),
        tuple(
            _curve(f"S = {count:,} steps", rates, [least_noise(q, count) / q for q in rates])
            for count in steps
        ),
    )
    sigma = (
        f"σ is the least noise multiplier {_LEAST}. The noise on the mean gradient has standard "
        "deviation C σ/(q N) per coordinate, so σ/q is what a larger batch lowers."
    )
    return Content([panel], [sigma, *figure.notes])


@functools.cache
def least_noise(rate: float, steps: int) -> float:
    """Return the noise multiplier for `EPSILON` and `DELTA`."""
    budget = {"target_epsilon": EPSILON, "delta": DELTA}
    return calibrate_noise(**budget, sampling_rate=rate, steps=steps, accountant="rdp")


def memory_profile(figure: Figure, inputs: Inputs) -> Content:
    """Bu et al. 2023, Figure 4, for ViT-large with patches of 16, 224 pixels, batch 32."""
    layers = vit(*SHAPES["vit-large"])
    forward = list(itertools.accumulate(layer.T * layer.d for layer in layers))
    whole = boundaries(layers, [])
    unit = BATCH * BYTES / 1e9
    styles = {
        "all layers, M = 1": backward(layers, whole),
        "uniform groups, M = 4": backward(layers, uniform(layers, 4)),
        f"per layer, M = {len(layers)}": backward(layers, each(layers)),
        "non-private": backward(layers, whole, False),
    }
    sizes = {label: [unit * size for size in (*forward, *back)] for label, back in styles.items()}
    series = [_curve(label, range(1, len(kept) + 1), kept) for label, kept in sizes.items()]
    turn = FigurePoint(len(layers) + 0.5, 0.0)
    series.append(Series("the backward begins", (turn,), Origin.COMPUTED, "verticals"))
    panel = Panel(
        f"ViT-large-patch16-224, batch {BATCH}, float32",
        Axis(f"layer: {len(layers)} forward, then {len(layers)} backward"),
        Axis("kept activations and output gradients (GB)", from_zero=True),
        tuple(series),
    )
    tops = ", ".join(f"{label}: {max(kept):.2f} GB" for label, kept in sizes.items())
    counted = f"Counted by Fact 6.1, not measured. Peaks: {tops}."
    return Content([panel], [counted, *figure.notes])


def _curve(label: str, xs: Sequence[float], ys: Sequence[float]) -> Series:
    return Series(label, tuple(map(FigurePoint, xs, ys)), Origin.COMPUTED)
