"""Copy what may be published of finished runs into the table of results/, and show them.

    python scripts/collect_results.py GROUP runs/ONE=NAME runs/OTHER

Without runs it only shows the group. Of each run its record is kept. Where the group has a page,
results/GROUP/README.md, the table between its two marker lines is written anew; bars of one score
stand above it unless the page has a picture. The README's chart, results/figures/utility.*, is
drawn anew too: equal records give equal files.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from dpft.privacy.guarantee import Guarantee
from dpft.report.comparison import Row, as_markdown, row
from dpft.runs.record import read_record, read_table, write_table
from dpft.tasks.scores import shown

RESULTS = Path(__file__).resolve().parent.parent / "results"
WIDTH = 40  # of the longest bar
# The first of these that every run of a group has is drawn.
DRAWN = ("exposure, bits", "BLEU", "accuracy", "ROUGE_1", "F1")
TITLE = "E2E, all 42,061 records\nGPT-2 of 0.76 million parameters, 10 epochs"
RUNS = ("e2e-tiny/ghost-eps3", "e2e-tiny/ghost-eps8", "e2e-tiny/none")  # the last without privacy
BEGIN, END = "<!-- table of the records: begin -->", "<!-- table of the records: end -->"


def main(group: str, choices: list[str]) -> None:
    """Add runs to a group, or show those that it has."""
    records = read_table(RESULTS)
    for choice in choices:
        folder, _, name = choice.partition("=")
        records[f"{group}/{name or Path(folder).name}"] = read_record(Path(folder))
    if choices:
        write_table(RESULTS, records)
    page = RESULTS / group / "README.md"
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    table = rendered(records, group, text)
    if text:
        before, rest = text.split(BEGIN)
        page.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    draw_chart()
    print(table)


def rendered(records: Mapping[str, Any], group: str, page: str) -> str:
    """Return the runs of a group as a table, in the order of their names, below bars."""
    own = [(Path(path), record) for path, record in records.items()]
    of_group = [row(path, record) for path, record in own if path.parent == Path(group)]
    table, drawn = as_markdown(of_group), bars(of_group)
    return table if "![" in page or not drawn else f"```\n{drawn}\n```\n\n{table}"


def bars(rows: Sequence[Row]) -> str:
    """Return bars of a score, the mean of each setting over its seeds, if there are several."""
    metric = next((name for name in DRAWN if all(name in cells for cells in rows)), "")
    scores: dict[str, list[float]] = {}
    for cells in rows if metric else ():
        if "-pilot-" not in cells["run"]:
            setting = re.sub(r"-s\d+$", "", cells["run"])
            scores.setdefault(setting, []).append(float(cells[metric]))
    if len(scores) < 2:
        return ""
    start = len(os.path.commonpath([name.replace("-", "/") for name in scores]) + "/")
    start = start if start > 1 else 0
    width, largest = max(map(len, scores)) - start, max(map(fmean, scores.values()))
    lines = [f"{metric}, means over seeds" if len(rows) > len(scores) else metric]
    for setting, mean in zip(scores, map(fmean, scores.values()), strict=True):
        bar = "\N{FULL BLOCK}" * round(WIDTH * mean / largest)
        lines.append(f"{setting[start:]:{width}} {bar} {mean:.{2 if largest > 1 else 4}f}")
    return "\n".join(lines)


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


def draw_chart() -> None:
    """Write the README's chart and its numbers."""
    import matplotlib
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
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
