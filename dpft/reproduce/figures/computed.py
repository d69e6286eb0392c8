"""Figures that follow from accounting or counting alone: no run, no data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from dpft.privacy.accounting import calibrate_noise
from dpft.reproduce.figures.catalog import Figure
from dpft.reproduce.figures.content import Axis, Content, FigurePoint, Origin, Panel, Series
from dpft.reproduce.figures.inputs import Inputs
from dpft.reproduce.figures.memory import SHAPES, backward, boundaries, each, uniform, vit

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
    sigmas = _sigmas([(rate, round(EPOCHS / rate)) for rate in rates], inputs)
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
    sigmas = iter(_sigmas([(rate, count) for count in steps for rate in rates], inputs))
    panel = Panel(
        f"(ε, δ) = ({EPSILON:g}, 1e-5)",
        Axis("sampling rate q", "log"),
        Axis("effective noise multiplier σ/q", "log"),
        tuple(
            _curve(f"S = {count:,} steps", rates, [next(sigmas) / rate for rate in rates])
            for count in steps
        ),
    )
    sigma = (
        f"σ is the least noise multiplier {_LEAST}. The noise on the mean gradient has standard "
        "deviation C σ/(q N) per coordinate, so σ/q is what a larger batch lowers."
    )
    return Content([panel], [sigma, *figure.notes])


def _sigmas(settings: Sequence[tuple[float, int]], inputs: Inputs) -> list[float]:
    """The noise multiplier for `EPSILON` and `DELTA` at each sampling rate and number of steps."""
    sigmas = []
    for done, (rate, steps) in enumerate(settings):
        inputs.progress(done, len(settings))
        sigmas.append(
            calibrate_noise(
                target_epsilon=EPSILON,
                delta=DELTA,
                sampling_rate=rate,
                steps=steps,
                accountant="rdp",
            )
        )
    return sigmas


def memory_profile(figure: Figure, inputs: Inputs) -> Content:
    """Bu et al. 2023, Figure 4, for ViT-large with patches of 16, 224 pixels, batch 32."""
    layers = vit(*SHAPES["vit-large"])
    forward = list(itertools.accumulate(layer.T * layer.d for layer in layers))
    whole = boundaries(layers, [])
    unit = BATCH * BYTES / 1e9
    styles = {
        label: [unit * size for size in (*forward, *sizes)]
        for label, sizes in (
            ("all layers, M = 1", backward(layers, whole)),
            ("uniform groups, M = 4", backward(layers, uniform(layers, 4))),
            (f"per layer, M = {len(layers)}", backward(layers, each(layers))),
            ("non-private", backward(layers, whole, False)),
        )
    }
    series = [_curve(label, range(1, len(sizes) + 1), sizes) for label, sizes in styles.items()]
    turn = FigurePoint(len(layers) + 0.5, 0.0)
    series.append(Series("the backward begins", (turn,), Origin.COMPUTED, "verticals"))
    panel = Panel(
        f"ViT-large-patch16-224, batch {BATCH}, float32",
        Axis(f"layer: {len(layers)} forward, then {len(layers)} backward"),
        Axis("kept activations and output gradients (GB)", from_zero=True),
        tuple(series),
    )
    tops = ", ".join(f"{label}: {max(sizes):.2f} GB" for label, sizes in styles.items())
    counted = f"Counted by Fact 6.1, not measured. Peaks: {tops}."
    return Content([panel], [counted, *figure.notes])


def _curve(label: str, xs: Sequence[float], ys: Sequence[float]) -> Series:
    return Series(label, tuple(map(FigurePoint, xs, ys)), Origin.COMPUTED)
