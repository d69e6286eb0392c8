"""Copy what may be published of finished runs into the table of results/, and show them.

    python scripts/collect_results.py GROUP runs/ONE=NAME runs/OTHER

Without runs it only shows the group. Of each run its record is kept. Where the group has a page,
results/GROUP/README.md, the table between its two marker lines is written anew, and runs.png too
if a comment says what it shows: "drawn: BLEU; full = GROUP/full; paper: full = 61.5". So is the
README's chart. Each picture holds its numbers, as its description.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from dpft.report.comparison import as_markdown, row
from dpft.reproduce.figures.draw import COLOURS, DPI, RC
from dpft.runs.record import read_record, read_table, write_table

RESULTS = Path(__file__).resolve().parent.parent / "results"
DRAWN = re.compile(r"<!-- drawn: (.+?) -->", re.DOTALL)
# the runs of the README's chart, the one without privacy last
RUNS = {
    "GPT-2, 757K, 10 epochs": [f"e2e-tiny/{x}" for x in ("ghost-eps3", "ghost-eps8", "none")],
    "SmolLM2-135M, 1/4 epoch": [f"e2e-smollm2/full-{x}" for x in ("eps3", "eps8", "none")],
}
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
    table = rendered(records, group)
    if text:
        before, rest = text.split(BEGIN)
        page.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    if DRAWN.search(text):
        draw_settings(*settings(records, text), page.with_name("runs.png"))
    draw_chart()
    print(table)


def rendered(records: Mapping[str, Any], group: str) -> str:
    """Return the runs of a group as a table, in the order of their names."""
    own = [(Path(path), record) for path, record in sorted(records.items())]
    return as_markdown([row(path, record) for path, record in own if path.parent == Path(group)])


def settings(records: Mapping[str, Any], page: str) -> tuple[str, dict[str, list[float]]]:
    """Return the metric that a page's picture shows, and the scores of each setting's seeds.

    A number that is no run's, such as a paper's, has a name with a colon.
    """
    metric, *lines = " ".join(DRAWN.findall(page)[0].split()).split("; ")
    scores: dict[str, list[float]] = {}
    for name, run in (line.split(" = ") for line in lines):
        seeds = [path for path in records if re.fullmatch(rf"{re.escape(run)}(-s\d+)?", path)]
        found = [row(Path(path), records[path])[metric] for path in seeds]
        scores[name] = [*map(float, [run] if ":" in name else found)]
    return metric, scores


def draw_settings(metric: str, scores: Mapping[str, Sequence[float]], file: Path) -> None:
    """Draw a dot for each seed of a setting and a line at their mean, quoted numbers hollow."""
    digits = 1 if max(map(max, scores.values())) > 1 else 3
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(5.2, 0.6 + 0.25 * len(scores)), layout="constrained")
        axes = figure.subplots()
        for place, (name, values) in enumerate(scores.items()):
            fill = "none" if ":" in name else COLOURS[0]
            axes.plot(values, [place] * len(values), "o", mec=COLOURS[0], mfc=fill, alpha=0.6)
            if len(values) > 1:
                axes.plot(fmean(values), place, "|", color="black", markersize=13)
        names = [f"{name}   {fmean(values):.{digits}f}" for name, values in scores.items()]
        axes.set_yticks(range(len(names)), names)
        axes.set(xlabel=metric, ylim=(len(names) - 0.5, -0.5))
        save(figure, file, repr(scores))


def points() -> dict[str, tuple[float | None, float]]:
    """Return epsilon by RDP, which all records have (None without privacy), and BLEU by run."""
    records, found = read_table(RESULTS), {}
    for run in (run for runs in RUNS.values() for run in runs):
        record = records[run]
        epsilon = (record["privacy"]["epsilon"] or {}).get("rdp")
        found[run] = (epsilon, float(row(Path(run), record)["BLEU"]))
    return found


def draw_chart() -> None:
    """Draw the README's chart."""
    found = points()
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(4.1, 3.2), layout="constrained")
        axes = figure.subplots()
        for (model, runs), colour, up in zip(RUNS.items(), COLOURS, (-13, 5), strict=False):
            *private, (_, plain) = (found[run] for run in runs)
            axes.plot(*zip(*private, strict=True), "o-", color=colour, label=model)
            axes.axhline(plain, ls="--", color=colour, label=f"without privacy: {plain:.1f}")
            for x, y in private:
                axes.annotate(f"{y:.1f}", (x, y), (0, up), textcoords="offset points", ha="center")
        axes.legend(loc="lower right", frameon=False)
        axes.set(xlabel="epsilon by RDP (smaller is more private)", ylabel="BLEU")
        axes.set(title="E2E, all 42,061 records", xlim=(0, 9), ylim=(40, 70))
        save(figure, RESULTS / "figures/utility.png", repr(found))


def save(figure: Figure, file: Path, numbers: str) -> None:
    """Write a picture with the numbers that it shows."""
    figure.savefig(file, dpi=DPI, metadata={"Software": "dpft", "Description": numbers})


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
