"""Copy what may be published of finished runs into the table of results/, and show them.

    python scripts/collect_results.py GROUP runs/ONE=NAME runs/OTHER

Without runs it only shows the group. Of each run its record is kept. Where the group has a page,
results/GROUP/README.md, the table between its two marker lines is written anew; bars of one score
stand above it unless the page has a picture.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpft.report.comparison import Row, as_markdown, row
from dpft.runs.record import read_record, read_table, write_table

RESULTS = Path(__file__).resolve().parent.parent / "results"
WIDTH = 40  # of the longest bar
# The first of these that every run of a group has is drawn.
DRAWN = ("exposure, bits", "BLEU", "accuracy", "ROUGE_1", "F1")
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
    print(table)


def rendered(records: Mapping[str, Any], group: str, page: str) -> str:
    """Return the runs of a group as a Markdown table, in the order of their names.

    Bars of one score stand above it, unless the page has a picture.
    """
    own = [(Path(path), record) for path, record in records.items()]
    of_group = [row(path, record) for path, record in own if path.parent == Path(group)]
    table, drawn = as_markdown(of_group), bars(of_group)
    return table if "![" in page or not drawn else f"```\n{drawn}\n```\n\n{table}"


def bars(rows: Sequence[Row]) -> str:
    """Return bars of the score that counts, of the mean of each setting over its seeds.

    A single setting has none. What all names begin with is left out.
    """
    metric = next((name for name in DRAWN if all(name in cells for cells in rows)), "")
    by_setting: dict[str, list[float]] = {}
    for cells in rows if metric else ():
        if "-pilot-" not in cells["run"]:
            setting = re.sub(r"-s\d+$", "", cells["run"])
            by_setting.setdefault(setting, []).append(float(cells[metric]))
    means = {setting: statistics.fmean(scores) for setting, scores in by_setting.items()}
    if len(means) < 2:
        return ""
    shared = os.path.commonpath([name.replace("-", "/") for name in means])
    start = len(shared) + bool(shared)
    width, largest = max(map(len, means)) - start, max(means.values())
    lines = [f"{metric}, means over seeds" if len(rows) > len(means) else metric]
    for setting, mean in means.items():
        bar = "\N{FULL BLOCK}" * round(WIDTH * mean / largest)
        lines.append(f"{setting[start:]:{width}} {bar} {mean:.{2 if largest > 1 else 4}f}")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
