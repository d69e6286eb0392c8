"""Figures from what a run keeps under ``private/``: noiseless, never to be published.

They are made for looking at one's own runs on public data; each says so in its caption.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from dpft.config.errors import ConfigError
from dpft.reproduce.figures.content import Axis, Content, Heat, Origin, Panel, Point, Series
from dpft.reproduce.figures.materials import Materials
from dpft.runs.errors import RunError
from dpft.runs.norms import NORMS, Norms, read_norms
from dpft.runs.record import read_record

WARNING = (
    "NOT COVERED BY THE GUARANTEE: made from the training records without noise. Publish it only "
    "where these records are public."
)
# He et al. 2022, Figures 2 and 4.
EXAMPLES, PANELS = 32, 4
QUANTILES = (0.25, 0.5, 0.75, 0.85)
_BINS = 40
_SMOOTHED = 20


def run_folders(at_hand: Materials) -> list[Path]:
    """Run directories that were named, else those of the figure's own runs."""
    own = [path for part in at_hand.parts for spot in part.spots for path in spot.cell.paths]
    return list(dict.fromkeys(at_hand.runs or own))


def _with_norms(name: str, at_hand: Materials) -> tuple[Path, list[Norms]]:
    for folder in run_folders(at_hand):
        file = folder / "private" / NORMS
        found = [one for one in read_norms(file) if one.values] if file.is_file() else []
        if found:
            if len(found[0].groups) < 2:
                raise ConfigError(
                    f"{folder} has one clipping group; {name} needs a run with one per "
                    "layer: type clip=per_layer or clip=per_layer_adaptive"
                )
            return folder, found
    raise ConfigError(
        f"{name} needs a run that recorded the norms of its records' gradients; type dpft figure "
        f"{name} --run, or dpft train clip=per_layer_adaptive record_norms=25 ... and then "
        f"dpft figure {name} --runs RUN"
    )


def spread_out(found: Sequence[Norms], count: int) -> list[Norms]:
    """``count`` of them from first to last, as evenly as can be."""
    if len(found) <= count:
        return list(found)
    return [found[round(k * (len(found) - 1) / (count - 1))] for k in range(count)]


def norms_by_layer(name: str, title: str, source: str, at_hand: Materials) -> Content:
    """He et al. 2022, Figure 2: norms of records by layer, at several steps."""
    folder, found = _with_norms(name, at_hand)
    shown = spread_out(found, PANELS)
    tops = [x for one in shown for row in one.values[:EXAMPLES] for x in row]
    panels = tuple(
        Heat(
            f"step {one.step + 1}",
            Axis("layer, input to output"),
            Axis("record"),
            "gradient norm",
            tuple(one.values[:EXAMPLES]),
            numbers=False,
            limits=(0.0, max(tops)),
        )
        for one in shown
    )
    caption = [
        WARNING,
        f"{_described(folder)}; {len(shown[0].groups)} layers, first {EXAMPLES} records of "
        "each step's batch: others in each panel, where the paper follows the same 32.",
    ]
    return Content(name, title, source, panels, at_hand.caption(caption), columns=2, private=True)


def histograms(name: str, title: str, source: str, at_hand: Materials) -> Content:
    """He et al. 2022, Figure 4: histograms of records' norms in four layers, with quantiles."""
    folder, found = _with_norms(name, at_hand)
    steps = spread_out(found, 3)
    panels = []
    for group in chosen_layers(found[0].groups):
        place = found[0].groups.index(group)
        for one in steps:
            panels.append(_histogram(group, one.step, [row[place] for row in one.values]))
    caption = [
        WARNING,
        f"{_described(folder)}. All records of the step's batch. The paper shows the embedding, "
        "the value matrices of the 6th and 12th attention and the classification layer.",
    ]
    return Content(
        *(name, title, source, tuple(panels), at_hand.caption(caption)),
        columns=len(steps),
        private=True,
    )


def chosen_layers(groups: Sequence[str]) -> list[str]:
    """An embedding, the value matrices half-way and at the end, and the last layer.

    Where names tell no value matrices apart, layers half-way and before the last.
    """
    values = [g for g in groups if any(part in g for part in ("value", "v_proj", "c_attn", "qkv"))]
    embeddings = [g for g in groups if "emb" in g or "wte" in g]
    middle = values[(len(values) - 1) // 2] if values else groups[(len(groups) - 1) // 2]
    late = values[-1] if values else groups[-2]
    return list(dict.fromkeys([(embeddings or [groups[0]])[0], middle, late, groups[-1]]))


def _histogram(group: str, step: int, values: Sequence[float]) -> Panel:
    import numpy as np

    counts, edges = np.histogram(values, bins=_BINS)
    outline = [Point(float(x), float(y)) for x, y in zip(edges[:-1], counts, strict=True)]
    outline.append(Point(float(edges[-1]), 0.0))
    marked = tuple(Point(float(np.quantile(values, q)), 0.0) for q in QUANTILES)
    told = ", ".join(f"{q:.0%}" for q in QUANTILES)
    return Panel(
        f"{group}, step {step + 1}",
        Axis("gradient norm"),
        Axis("records", from_zero=True),
        (
            Series("records", tuple(outline), Origin.OURS, "steps", unsaid=True),
            Series(f"quantiles {told}", marked, Origin.OURS, "verticals", unsaid=True),
        ),
    )


def losses_by_time(name: str, title: str, source: str, at_hand: Materials) -> Content:
    """He et al. 2022, Figure 7, with the loss on the training batches in place of a test set's.

    Raises:
        ConfigError: if no run has its metrics.
    """
    series = []
    for folder in run_folders(at_hand):
        points = _smoothed(_losses(folder / "private" / "metrics.jsonl"))
        if points:
            style = read_record(folder)["config"]["clip"]["style"]
            series.append(
                Series(f"{style}: {folder.name}", tuple(points), Origin.OURS, unsaid=True)
            )
    if not series:
        raise ConfigError(
            f"{name} needs runs with their private/metrics.jsonl; type dpft figure {name} --run, "
            f"or dpft figure {name} --runs RUN --runs RUN"
        )
    panel = Panel("", Axis("minutes of training"), Axis("loss of the batch"), tuple(series))
    caption = [
        WARNING,
        f"Mean loss of each step's records, averaged over {_SMOOTHED} steps. The paper shows the "
        "negative log-likelihood of the test set, which a run on E2E does not record.",
        *(_described(folder) for folder in run_folders(at_hand)),
    ]
    return Content(name, title, source, (panel,), at_hand.caption(caption), private=True)


def _losses(path: Path) -> list[tuple[float, float]]:
    """Minutes since the start, and the loss, of every step that had records."""
    if not path.is_file():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        times = itertools.accumulate(float(line["seconds"]) / 60 for line in lines)
        return [
            (minutes, float(line["loss"]))
            for minutes, line in zip(times, lines, strict=True)
            if line["loss"] is not None
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{path} is damaged ({error!r}); expected a line of JSON for each step"
        ) from error


def _smoothed(values: Iterable[tuple[float, float]]) -> list[Point]:
    listed = list(values)
    return [
        Point(listed[i][0], fmean(loss for _, loss in listed[max(0, i - _SMOOTHED + 1) : i + 1]))
        for i in range(len(listed))
    ]


def _described(folder: Path) -> str:
    try:
        record = read_record(folder)
    except RunError:  # it is still running
        return folder.name
    config, environment = record["config"], record.get("environment", {})
    where = environment.get("gpu") or environment.get("cpu") or "a machine that is not recorded"
    return f"{folder.name}: {config['task']['name']}, {config['model']['name']}, on {where}"
