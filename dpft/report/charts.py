"""Charts of a page, drawn by matplotlib.

Epsilon is released, and so are figures of held-out records where those are public. Losses, norms,
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
from dpft.report.gather import Gathered, finite, section
from dpft.report.grouping import Scored

Point = tuple[float, float | None]
# Readable on white and on black paper.
_COLOURS = ("#3b82c4", "#c9610a", "#2e9151", "#b8519a", "#8a7600", "#12899a", "#d14b52", "#7f7f7f")
_GREY = "#7f7f7f"
# Steps at which epsilon is computed by privacy loss distributions: a fifth of a second each.
_EPSILONS = 8


@dataclass(frozen=True)
class Line:
    """A named curve through points, or one ``level`` everywhere."""

    name: str
    points: Sequence[Point]
    level: float | None = None


@dataclass(frozen=True)
class Chart:
    """A drawing as SVG in base64, with names and colours of its lines."""

    title: str
    note: str
    image: str
    legend: list[tuple[str, str]]


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    across: str = "step",
    dots: bool = False,
    note: str = "",
) -> list[Chart]:
    """Draw lines, or dots; values that are not finite are gaps. Empty if there are no values."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    if len(lines) > len(_COLOURS):
        note = "; ".join(filter(None, [note, f"{len(_COLOURS)} of {len(lines)}"]))
    lines = lines[: len(_COLOURS)]
    if not any(finite(value) is not None for line in lines for _, value in line.points):
        return []
    # No text from elsewhere is drawn: names are in the legend, which is HTML.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "dpft", "font.family": "sans-serif"}):
        figure = Figure(figsize=(6.4, 2.7), layout="constrained")
        axes = figure.add_subplot()
        for line, colour in zip(lines, _COLOURS, strict=False):
            if line.level is not None:
                axes.axhline(line.level, color=colour, linestyle="--", linewidth=1)
                continue
            places, values = zip(*line.points, strict=True)
            drawn = [math.nan if finite(value) is None else value for value in values]
            marker = "o" if len(drawn) < 20 or dots else ""
            style = "none" if dots else "-"
            axes.plot(places, drawn, color=colour, linestyle=style, marker=marker, markersize=4)
        axes.set_xlabel(across, color=_GREY)
        axes.tick_params(colors=_GREY, which="both")
        axes.spines[:].set_color(_GREY)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=_GREY, alpha=0.25)
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    legend = [(line.name, colour) for line, colour in zip(lines, _COLOURS, strict=False)]
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
        charts += chart("Epsilon spent", [epsilon(run)], note=note)
    for key in ("loss", "accuracy", "perplexity"):
        lines = [
            Line(run.name, [(entry["step"], finite(entry.get(key))) for entry in run.evaluations])
            for run in runs
            if run.evaluations
        ]
        constants = [finite(section(run.record, "evaluation").get("baseline")) for run in runs]
        if key == "accuracy" and len(set(constants)) == 1 and constants[0] is not None:
            lines.append(Line("most frequent class everywhere", (), constants[0]))
        charts += chart(f"{key.capitalize()} of held-out records", lines)
    return charts


def noiseless(runs: Sequence[Gathered]) -> list[Chart]:
    """Return charts that no guarantee covers; none unless the private metrics were read."""
    charts: list[Chart] = []
    for title, key in (
        ("Mean loss of the batch", "loss"),
        ("Clipped fraction of the batch, mean over groups", "clipped"),
        ("Mean gradient norm of the batch, mean over groups", "norm_mean"),
        ("Records in the batch", "records"),
    ):
        lines = [
            Line(run.name, [(entry["step"] + 1, _mean(entry.get(key))) for entry in run.metrics])
            for run in runs
            if run.metrics
        ]
        charts += chart(title, lines)
    return charts


def epsilon(run: Gathered) -> Line:
    """Return what was spent, by the accountant of the run's statement.

    By PLD after some of the steps; by Renyi accounting after each release. Empty where the ledger
    leaves steps out, and of a selection, whose epsilon is not spent step by step.
    """
    given, mechanism = run.guarantee, run.mechanism
    points: Sequence[Point] = ()
    if given is not None and given.accountant == "pld" and given.delta is not None:
        steps, cost = given.steps_taken, {**spent(mechanism), "delta": given.delta}
        some = sorted({round(steps * n / _EPSILONS) for n in range(1, _EPSILONS)} - {0, steps})
        points = [*((n, epsilon_pld(steps=n, **cost)) for n in some), (steps, given.stated)]
    elif run.ledger and not (given is not None and given.selected):
        entries = enumerate(run.ledger.entries, 1)
        points = [(n, finite(entry.get("epsilon_rdp"))) for n, entry in entries]
    return Line("epsilon", [(0, 0.0), *points] if points else ())


def _mean(value: object) -> float | None:
    known = [n for n in map(finite, value if isinstance(value, list) else [value]) if n is not None]
    return math.fsum(known) / len(known) if known else None


def tradeoffs(ordered: Sequence[tuple[Gathered, Scored]]) -> list[Chart]:
    """Return a chart for each task, split and metric, with a dot for each private run."""
    charts: list[Chart] = []
    for kind in dict.fromkeys(scored[0] for _, scored in ordered if scored is not None):
        dots: dict[str, list[Point]] = {}
        levels: dict[str, float] = {}
        for run, scored in ordered:
            if scored is None or scored[0] != kind or run.guarantee is None:
                continue
            if not run.private:
                levels.setdefault("best without privacy", scored[1])
            elif run.guarantee.stated is not None:
                name = f"clip={section(run.config, 'clip').get('style')}"
                if run.guarantee.voided_by:
                    name += ", epsilon with a warning"
                dots.setdefault(name, []).append((run.guarantee.stated, scored[1]))
        lines = [Line(name, points) for name, points in dots.items()]
        lines += [Line(name, (), level) for name, level in levels.items()]
        if sum(map(len, dots.values())) + len(levels) > 1:
            note = f"{kind.task}, {kind.split}; a dot for each run"
            title, across = f"{kind.metric} against epsilon", "epsilon, at most"
            charts += chart(title, lines, across=across, note=note, dots=True)
    return charts
