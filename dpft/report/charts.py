"""Charts of a page, drawn by matplotlib.

Epsilon is released, and so are scores of held-out records where those are public. Losses, norms,
clipped fractions and batch sizes come from the training records without noise, out of
``private/metrics.jsonl``.
"""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpft.privacy.accounting import epsilon_pld, spent
from dpft.privacy.guarantee import BY
from dpft.report.gather import Gathered, finite

Points = Sequence[tuple[float, float | None]]
# Readable on white and on black paper.
_COLOURS = ("#3b82c4", "#c9610a", "#2e9151", "#b8519a", "#8a7600", "#12899a", "#d14b52", "#7f7f7f")
_GREY = "#7f7f7f"
# Steps at which epsilon is computed by privacy loss distributions: a fifth of a second each.
_EPSILONS = 8
_NOISELESS = {
    "Mean loss of the batch": "loss",
    "Clipped fraction of the batch, mean over groups": "clipped",
    "Mean gradient norm of the batch, mean over groups": "norm_mean",
    "Records in the batch": "records",
}


@dataclass(frozen=True)
class Chart:
    """A drawing as SVG in base64, with names and colours of its lines."""

    title: str
    note: str
    image: str
    legend: list[tuple[str, str]]


def chart(title: str, lines: Sequence[tuple[str, Points]], note: str = "") -> list[Chart]:
    """Draw lines by name over the steps; empty if there are no points.

    Values that are not finite are gaps.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    if len(lines) > len(_COLOURS):
        note = "; ".join(filter(None, [note, f"{len(_COLOURS)} of {len(lines)}"]))
    lines = lines[: len(_COLOURS)]
    points = [point for _, one in lines for point in one]
    if not any(finite(value) is not None for _, value in points):
        return []
    # No text from elsewhere is drawn: names are in the legend, which is HTML.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "dpft", "font.family": "sans-serif"}):
        figure = Figure(figsize=(6.4, 2.7), layout="constrained")
        axes = figure.add_subplot()
        for (_, line), colour in zip(lines, _COLOURS, strict=False):
            places, values = zip(*line, strict=True)
            drawn = [math.nan if finite(value) is None else value for value in values]
            marker = "o" if len(drawn) < 20 else ""
            axes.plot(places, drawn, color=colour, marker=marker, markersize=4)
        axes.set_xlabel("step", color=_GREY)
        axes.tick_params(colors=_GREY, which="both")
        axes.spines[:].set_color(_GREY)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=_GREY, alpha=0.25)
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    legend = [(name, colour) for (name, _), colour in zip(lines, _COLOURS, strict=False)]
    return [Chart(title, note, base64.b64encode(stream.getvalue()).decode(), legend)]


def released(runs: Sequence[Gathered]) -> list[Chart]:
    """Return the charts that may be published: epsilon of one run, and evaluations."""
    charts: list[Chart] = []
    if len(runs) == 1:
        (run,) = runs
        by = (run.guarantee and run.guarantee.accountant) or "rdp"
        note = f"by {BY.get(by, by)}"
        if run.mechanism.get("sampling") == "shuffle":
            note = "computed for Poisson sampling, not proven here"
        if points := epsilon(run):
            charts += chart("Epsilon spent", [("epsilon", [(0, 0.0), *points])], note)
    evaluated = [run for run in runs if run.evaluations]
    for key in ("loss", "accuracy"):
        lines = [
            (run.name, [(entry["step"], finite(entry.get(key))) for entry in run.evaluations])
            for run in evaluated
        ]
        charts += chart(f"{key.capitalize()} of held-out records", lines)
    return charts


def noiseless(runs: Sequence[Gathered]) -> list[Chart]:
    """Return charts that no guarantee covers; none unless the private metrics were read."""

    def mean(value: object) -> float | None:
        numbers = map(finite, value if isinstance(value, list) else [value])
        known = [number for number in numbers if number is not None]
        return math.fsum(known) / len(known) if known else None

    charts: list[Chart] = []
    for title, key in _NOISELESS.items():
        lines = [
            (run.name, [(entry["step"] + 1, mean(entry.get(key))) for entry in run.metrics])
            for run in runs
            if run.metrics
        ]
        charts += chart(title, lines)
    return charts


def epsilon(run: Gathered) -> Points:
    """Return what was spent by step, by the accountant of the run's statement.

    By PLD after some of the steps; by Renyi accounting after each release. Empty where the ledger
    leaves steps out, and of a selection, whose epsilon is not spent step by step.
    """
    given, mechanism = run.guarantee, run.mechanism
    if given is not None and given.accountant == "pld" and given.delta is not None:
        steps, cost = given.steps_taken, {**spent(mechanism), "delta": given.delta}
        some = sorted({round(steps * n / _EPSILONS) for n in range(1, _EPSILONS)} - {0, steps})
        return [*((n, epsilon_pld(steps=n, **cost)) for n in some), (steps, given.stated)]
    if run.ledger and not (given is not None and given.selected):
        entries = enumerate(run.ledger.entries, 1)
        return [(n, finite(entry.get("epsilon_rdp"))) for n, entry in entries]
    return ()
