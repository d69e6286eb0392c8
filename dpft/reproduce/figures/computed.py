"""Figures that follow from the accountant alone: no run, no data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dpft.privacy.accounting import calibrate_noise
from dpft.reproduce.figures.content import Axis, Content, Origin, Panel, Point, Series

EPSILON, DELTA = 3.0, 1e-5
# Li et al. 2022, Figure 6.
RECORDS, EPOCHS = 50_000, 50
EXPONENTS = tuple(-12 + 0.5 * k for k in range(21))
# Of Figure 3(a) neither the budget nor the numbers of steps came down to us.
STEPS = (100, 400, 1600, 6400)
RATES = tuple(10 ** (-4 + 0.25 * k) for k in range(17))

Tell = Callable[[int, int], None]


def _nobody(done: int, total: int) -> None:
    """Told how far it is, and does not care."""


def sigma_of(rate: float, steps: int) -> float:
    """The noise multiplier that `EPSILON` and `DELTA` ask for, by Renyi DP."""
    return calibrate_noise(
        target_epsilon=EPSILON, delta=DELTA, sampling_rate=rate, steps=steps, accountant="rdp"
    )


def steps_at(rate: float, epochs: float = EPOCHS) -> int:
    """Steps of ``epochs`` passes at a sampling rate, ``E/q`` rounded to a whole number."""
    return max(1, round(epochs / rate))


def square_root_rule(rates: Sequence[float], sigmas: Sequence[float]) -> list[float]:
    """``c sqrt(q)`` through the point of the largest rate."""
    place = max(range(len(rates)), key=lambda i: rates[i])
    c = sigmas[place] / math.sqrt(rates[place])
    return [c * math.sqrt(rate) for rate in rates]


def noise_by_rate(
    name: str, title: str, source: str, tell: Tell = _nobody, exponents: Sequence[float] = EXPONENTS
) -> Content:
    """Li et al. 2022, Figure 6: the noise that is needed, and what ``sigma = c sqrt(q)`` says."""
    rates = [2.0**k for k in exponents]
    sigmas = []
    for done, rate in enumerate(rates):
        tell(done, len(rates))
        sigmas.append(sigma_of(rate, steps_at(rate)))
    rule = square_root_rule(rates, sigmas)
    met = max(exponents)
    c = rule[-1] / math.sqrt(rates[-1])
    panel = Panel(
        f"(ε, δ) = ({EPSILON:g}, 1e-5), N = {RECORDS:,}, {EPOCHS} epochs",
        Axis("sampling rate q = B/N", "log2"),
        Axis("noise multiplier σ", "log2"),
        (
            _curve("computed (Renyi DP)", rates, sigmas),
            _curve(f"square-root rule, {c:.2f} √q", rates, rule),
        ),
    )
    caption = (
        f"Computed: the least σ whose ε by Renyi DP (improved conversion) is at most {EPSILON:g} "
        f"after {EPOCHS}/q steps, under Poisson sampling.",
        f"The rule's constant is not printed: c = {c:.3f} makes both meet at q = 2^{met:g}, the "
        "largest rate shown. Below q = 2^-8 it asks for clearly less noise than is needed.",
    )
    return Content(name, title, source, (panel,), caption)


def effective_noise(
    name: str,
    title: str,
    source: str,
    tell: Tell = _nobody,
    steps: Sequence[int] = STEPS,
    rates: Sequence[float] = RATES,
) -> Content:
    """Li et al. 2022, Figure 3(a): ``sigma / q`` by sampling rate at fixed numbers of steps."""
    series = []
    for place, count in enumerate(steps):
        values = []
        for done, rate in enumerate(rates):
            tell(place * len(rates) + done, len(steps) * len(rates))
            values.append(sigma_of(rate, count) / rate)
        series.append(_curve(f"S = {count:,} steps", rates, values))
    panel = Panel(
        f"(ε, δ) = ({EPSILON:g}, 1e-5)",
        Axis("sampling rate q", "log"),
        Axis("effective noise multiplier σ/q", "log"),
        tuple(series),
    )
    caption = (
        "σ is the least noise multiplier whose ε by Renyi DP (improved conversion) is at most "
        f"{EPSILON:g}. The noise on the mean gradient has standard deviation C σ/(q N) per "
        "coordinate, so σ/q is what a larger batch lowers.",
        "The paper's budget and its numbers of steps S did not survive in the text at hand: those "
        "of its Figure 6 and four round numbers are used. That σ_eff = σ/q is inferred from its "
        "formula for the noise.",
    )
    return Content(name, title, source, (panel,), caption)


def _curve(label: str, xs: Sequence[float], ys: Sequence[float]) -> Series:
    points = tuple(Point(x, y) for x, y in zip(xs, ys, strict=True))
    return Series(label, points, Origin.COMPUTED, unsaid=True)
