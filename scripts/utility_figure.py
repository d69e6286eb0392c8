"""Scores against epsilon of the committed runs, for the README: PNG and CSV.

``python scripts/utility_figure.py`` reads the table of results/ and writes
``results/figures/utility.*``; equal records give equal files. Nothing is trained.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpft.privacy.guarantee import Guarantee
from dpft.runs.record import read_table
from dpft.tasks.metrics.shown import HUNDRED, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parent.parent
# A panel: title, folder of results/, its runs, the score, and what it is.
PANELS = (
    (
        "E2E, all 42,061 records\nGPT-2 of 0.76 million parameters, 10 epochs",
        "e2e-tiny",
        ("ghost-eps3", "ghost-eps8", "none"),
        "BLEU",
    ),
    (
        "SST-2, all 67,349 records\nMiniLM, 22.7 million parameters, 2 to 3 epochs",
        "sst2-minilm",
        ("eps3", "eps8", "none"),
        "accuracy",
    ),
)
# Of SST-2's dev set, whose labels are public: results/sst2-minilm/README.md.
MAJORITY = {"accuracy": 0.509}


@dataclass(frozen=True)
class Point:
    """A run's score; epsilon is None without privacy."""

    folder: str
    run: str
    metric: str
    epsilon: float | None
    score: float

    @property
    def line(self) -> str:
        """Of the CSV."""
        epsilon = "none" if self.epsilon is None else f"{self.epsilon:.4f}"
        return f"{self.folder},{self.run},{self.metric},{epsilon},{self.score:.4f}"


def points() -> list[list[Point]]:
    """Of each panel, read from the records."""
    return [[_point(folder, run, metric) for run in runs] for _, folder, runs, metric in PANELS]


def csv(panels: list[list[Point]]) -> str:
    """The numbers that are drawn."""
    lines = [point.line for panel in panels for point in panel]
    return "\n".join(["folder,run,metric,epsilon_at_most,score", *lines, ""])


def _point(folder: str, run: str, metric: str) -> Point:
    path = f"{folder}/{run}"
    record = read_table(ROOT / "results")[path]
    guarantee = Guarantee.of_record(record)
    found = record["scores"][record["config"]["decode"]["split"]]
    score = shown(metric, found["metrics"][metric], found.get("signature"))
    return Point(folder, run, metric, guarantee.stated if guarantee.private else None, score)


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
        figure = Figure(figsize=(8.2, 3.2), layout="constrained")
        for axes, panel, (title, *_) in zip(figure.subplots(1, 2), drawn, PANELS, strict=True):
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
    levels = {f"without privacy {plain:.{digits}f}": plain}
    if metric in MAJORITY:
        levels[f"majority class {MAJORITY[metric]:.3f}"] = MAJORITY[metric]
    for name, y in levels.items():
        axes.axhline(y, color="0.35", linestyle="dashed", linewidth=1)
        axes.annotate(name, (0.1, y), (2, 3), textcoords="offset points", color="0.25")
    axes.set(title=title, xlabel="epsilon, at most (smaller is more private)", ylabel=metric)
    axes.set_xlim(0, 9)
    axes.set_ylim(0, 1.12 * plain)


if __name__ == "__main__":
    main()
