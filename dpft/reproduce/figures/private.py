"""Figures from what a run keeps under ``private/``: noiseless, never to be published.

They show a user's own runs on public data; each says so in its caption.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from dpft.config.errors import ConfigError
from dpft.reproduce.figures.catalog import Figure, Inputs
from dpft.reproduce.figures.content import Axis, Content, FigurePoint, Heat, Origin, Panel, Series
from dpft.reproduce.papers import show_label
from dpft.runs.log import NORMS, Norms, read_norms

T = TypeVar("T")

WARNING = (
    "NOT COVERED BY THE GUARANTEE: made from the training records without noise. Publish it only "
    "where these records are public."
)
# He et al. 2022, Figures 2 and 4.
EXAMPLES, PANELS = 32, 4
QUANTILES = (0.25, 0.5, 0.75, 0.85)
# Li et al. 2022, Section 3.1.1.
FIRST = 30
_BINS = 40


def norms_by_layer(figure: Figure, inputs: Inputs) -> Content:
    """He et al. 2022, Figure 2: norms of records by layer, at several steps."""
    folder, recorded = _with_norms(figure.name, inputs)
    steps = spread_out(recorded, PANELS)
    highest = max(norm for one in steps for row in one.values[:EXAMPLES] for norm in row)
    x, panels = Axis("layer, input to output"), []
    for one in steps:
        rows = one.values[:EXAMPLES]
        cells = tuple(tuple(map(FigurePoint, range(len(row)), row)) for row in rows)
        more: dict[str, Any] = {"show_numbers": False, "limits": (0.0, highest)}
        title = f"step {one.step + 1}"
        panels.append(Heat(title, x, Axis("record"), "gradient norm", cells, **more))
    note = (
        f"Run {folder.name}; {len(recorded[0].groups)} layers, first {EXAMPLES} records of each "
        "step's batch: others in each panel, where the paper follows the same 32."
    )
    return Content(panels, [WARNING, note], columns=2)


def histograms(figure: Figure, inputs: Inputs) -> Content:
    """He et al. 2022, Figure 4: histograms of records' norms in four layers, with quantiles."""
    import numpy as np

    folder, recorded = _with_norms(figure.name, inputs)
    steps, groups = spread_out(recorded, 3), recorded[0].groups
    # An embedding, value matrices (else layers) half-way and last, and the last layer.
    values = [g for g in groups if any(part in g for part in ("value", "v_proj", "c_attn", "qkv"))]
    inner = values or groups[:-1]
    first = next((g for g in groups if "emb" in g or "wte" in g), groups[0])
    layers = dict.fromkeys([first, inner[(len(inner) - 1) // 2], inner[-1], groups[-1]])
    panels = []
    for group, one in itertools.product(layers, steps):
        norms = [row[groups.index(group)] for row in one.values]
        counts, edges = np.histogram(norms, bins=_BINS)
        outline = tuple(map(FigurePoint, edges.tolist(), [*counts.astype(float).tolist(), 0.0]))
        marked = tuple(FigurePoint(float(np.quantile(norms, q)), 0.0) for q in QUANTILES)
        quantiles = f"quantiles {', '.join(f'{q:.0%}' for q in QUANTILES)}"
        series = (
            Series("records", outline, Origin.OURS, "steps"),
            Series(quantiles, marked, Origin.OURS, "verticals"),
        )
        axes = Axis("gradient norm"), Axis("records", from_zero=True)
        panels.append(Panel(f"{group}, step {one.step + 1}", *axes, series))
    note = (
        f"Run {folder.name}. All records of the step's batch. The paper shows the embedding, "
        "the value matrices of the 6th and 12th attention and the classification layer."
    )
    return Content(panels, [WARNING, note], columns=len(steps))


def signal_to_noise(figure: Figure, inputs: Inputs) -> Content:
    """Li et al. 2022, Figure 3 (right): score by the mean ratio of signal to noise at first."""
    series, folders = [], []
    for score in inputs.scores:
        points = []
        marks = "".join(mark.letter for mark in score.cell.marks)
        for folder, value in zip(score.cell.paths, score.cell.by_seed.values(), strict=True):
            steps = (one for one in _norms(folder) if one.step < FIRST)
            ratios = [x.signal / x.noise for x in steps if x.signal is not None and x.noise]
            if ratios:
                folders.append(folder)
                points.append(FigurePoint(fmean(ratios), value, marks=marks))
        if points:
            name = f"batches of {show_label(score.row.labels.get('batch size'))}"
            series.append(Series(name, tuple(points), Origin.OURS, "points"))
    if not series:
        raise ConfigError(
            f"{figure.name} needs runs with a score that recorded their first steps; type dpft "
            f"figure {figure.name} --run, or dpft train record_norms=1 ..."
        )
    axis = Axis("signal-to-noise ratio, mean of the first steps")
    panel = Panel("E2E", axis, Axis("BLEU"), tuple(series))
    note = (
        f"Norm of the mean of the clipped gradients over the expected norm of its noise, averaged "
        f"over the first {FIRST} steps; a point is a run."
    )
    return Content([panel], [WARNING, note, f"Runs {', '.join(one.name for one in folders)}."])


def _norms(folder: Path) -> list[Norms]:
    file = folder / "private" / NORMS
    return list(read_norms(file)) if file.is_file() else []


def _with_norms(name: str, inputs: Inputs) -> tuple[Path, list[Norms]]:
    """Return the first run that recorded norms, and its steps."""
    recorded = (path for score in inputs.scores for path in score.cell.paths)
    for folder in dict.fromkeys(inputs.runs or recorded):
        steps = [one for one in _norms(folder) if one.values]
        if steps and len(steps[0].groups) < 2:
            raise ConfigError(
                f"{folder} has one clipping group; {name} needs a run with one per layer: type "
                "clip=per_layer or clip=per_layer_adaptive"
            )
        if steps:
            return folder, steps
    raise ConfigError(
        f"{name} needs a run that recorded the norms of its records' gradients; type dpft figure "
        f"{name} --run, or dpft train clip=per_layer_adaptive record_norms=25 ... and then "
        f"dpft figure {name} --runs RUN"
    )


def spread_out(steps: Sequence[T], count: int) -> list[T]:
    """Return ``count`` of the steps from first to last, as evenly as possible."""
    if len(steps) <= count:
        return list(steps)
    return [steps[round(k * (len(steps) - 1) / (count - 1))] for k in range(count)]
