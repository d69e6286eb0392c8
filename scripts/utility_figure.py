"""BLEU on E2E against epsilon, of the committed runs, for the README.

``python scripts/utility_figure.py`` reads the table of results/ and writes
``results/figures/utility.*``; equal records give equal files. Nothing is trained.
"""

from __future__ import annotations

from pathlib import Path

from dpft.privacy.guarantee import Guarantee
from dpft.runs.record import read_table
from dpft.tasks.scores import shown

RESULTS = Path(__file__).resolve().parent.parent / "results"
TITLE = "E2E, all 42,061 records\nGPT-2 of 0.76 million parameters, 10 epochs"
RUNS = ("e2e-tiny/ghost-eps3", "e2e-tiny/ghost-eps8", "e2e-tiny/none")  # the last without privacy


def points() -> list[tuple[str, float | None, float]]:
    """Return run, epsilon (None without privacy) and BLEU from the records."""
    found, records = [], read_table(RESULTS)
    for run in RUNS:
        guarantee = Guarantee.of_record(records[run])
        scores = records[run]["scores"][records[run]["config"]["decode"]["split"]]
        bleu = shown("BLEU", scores["metrics"]["BLEU"], scores.get("signature"))
        found.append((run, guarantee.stated if guarantee.private else None, bleu))
    return found


def csv() -> str:
    """Return the numbers that are drawn."""
    lines = ["run,epsilon_at_most,BLEU"]
    for run, epsilon, bleu in points():
        lines.append(f"{run},{'none' if epsilon is None else f'{epsilon:.4f}'},{bleu:.4f}")
    return "\n".join([*lines, ""])


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    from dpft.reproduce.figures.draw import DPI, RC

    *private, (_, _, plain) = points()
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(4.1, 3.2), layout="constrained")
        axes = figure.subplots()
        axes.plot(*zip(*(p[1:] for p in private), strict=True), marker="o", color="#0072B2")
        for _, x, y in private:
            axes.annotate(f"{y:.1f}", (x, y), (0, -13), textcoords="offset points", ha="center")
        axes.axhline(plain, color="0.35", linestyle="dashed", linewidth=1)
        name = f"without privacy {plain:.1f}"
        axes.annotate(name, (0.1, plain), (2, 3), textcoords="offset points", color="0.25")
        axes.set(title=TITLE, xlabel="epsilon, at most (smaller is more private)", ylabel="BLEU")
        axes.set(xlim=(0, 9), ylim=(0, 1.12 * plain))
        figure.savefig(RESULTS / "figures/utility.png", dpi=DPI, metadata={"Software": "dpft"})
    (RESULTS / "figures/utility.csv").write_text(csv())


if __name__ == "__main__":
    main()
