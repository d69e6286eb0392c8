"""Scores against epsilon of the committed runs, for the README: PNG and CSV.

``python scripts/utility_figure.py`` reads the table of results/ and writes
``results/figures/utility.*``; equal records give equal files. Nothing is trained.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dpft.privacy.guarantee import Guarantee
from dpft.runs.record import read_table
from dpft.tasks.scores import HUNDRED, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parent.parent
# A panel: title, folder of results/, its runs, and the score.
PANELS = (
    (
        "E2E, all 42,061 records\nGPT-2 of 0.76 million parameters, 10 epochs",
        "e2e-tiny",
        ("ghost-eps3", "ghost-eps8", "none"),
        "BLEU",
    ),
)


class Point(NamedTuple):
    """The score of a run; epsilon is None without privacy."""

    folder: str
    run: str
    metric: str
    epsilon: float | None
    score: float


def points() -> list[list[Point]]:
    """Return the points of each panel from the records."""
    records = read_table(ROOT / "results")
    panels: list[list[Point]] = []
    for _, folder, runs, metric in PANELS:
        panels.append([])
        for run in runs:
            record = records[f"{folder}/{run}"]
            guarantee = Guarantee.of_record(record)
            found = record["scores"][record["config"]["decode"]["split"]]
            score = shown(metric, found["metrics"][metric], found.get("signature"))
            epsilon = guarantee.stated if guarantee.private else None
            panels[-1].append(Point(folder, run, metric, epsilon, score))
    return panels


def csv(panels: list[list[Point]]) -> str:
    """Return the numbers that are drawn."""
    lines = ["folder,run,metric,epsilon_at_most,score"]
    for folder, run, metric, epsilon, score in itertools.chain(*panels):
        at_most = "none" if epsilon is None else f"{epsilon:.4f}"
        lines.append(f"{folder},{run},{metric},{at_most},{score:.4f}")
    return "\n".join([*lines, ""])


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "results/figures")
    folder = parser.parse_args().out
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    from dpft.reproduce.figures.draw import DPI, RC

    drawn = points()
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(4.1 * len(PANELS), 3.2), layout="constrained")
        row = figure.subplots(1, len(PANELS), squeeze=False)[0]
        for axes, panel, (title, *_) in zip(row, drawn, PANELS, strict=True):
            _draw(axes, panel, title)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / "utility.png", dpi=DPI, metadata={"Software": "dpft"})
    (folder / "utility.csv").write_text(csv(drawn))


def _draw(axes: Axes, panel: list[Point], title: str) -> None:
    private = [(p.epsilon, p.score) for p in panel if p.epsilon is not None]
    (plain,) = (p.score for p in panel if p.epsilon is None)
    metric = panel[0].metric
    digits = 1 if metric in HUNDRED else 3
    axes.plot(*zip(*private, strict=True), marker="o", color="#0072B2")
    for x, y in private:
        axes.annotate(f"{y:.{digits}f}", (x, y), (0, -13), textcoords="offset points", ha="center")
    axes.axhline(plain, color="0.35", linestyle="dashed", linewidth=1)
    name = f"without privacy {plain:.{digits}f}"
    axes.annotate(name, (0.1, plain), (2, 3), textcoords="offset points", color="0.25")
    axes.set(title=title, xlabel="epsilon, at most (smaller is more private)", ylabel=metric)
    axes.set_xlim(0, 9)
    axes.set_ylim(0, 1.12 * plain)


if __name__ == "__main__":
    main()
