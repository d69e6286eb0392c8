"""Copy what may be published of finished runs into the table of results/, and show them.

    python scripts/collect_results.py GROUP runs/ONE=NAME runs/OTHER

Without runs it only shows the group. Of each run its record and the summary of its ledger
(`dpft.runs.summary`) are kept. Where the group has a page, results/GROUP/README.md, the table
between the page's two marker lines is written anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dpft.report.comparison import as_markdown, row
from dpft.runs.collected import CollectedRun, read_table, write_table
from dpft.runs.record import read_record
from dpft.runs.summary import summary

RESULTS = Path(__file__).resolve().parent.parent / "results"
BEGIN, END = "<!-- table of the records: begin -->", "<!-- table of the records: end -->"


def main(group: str, choices: list[str]) -> None:
    """Add runs to a group, or show those that it has."""
    runs = {run.path: run for run in read_table(RESULTS)}
    for choice in choices:
        folder, _, name = choice.partition("=")
        run = collected(Path(folder), f"{group}/{name or Path(folder).name}")
        runs[run.path] = run
    if choices:
        write_table(RESULTS, runs.values())
    table = rendered(group)
    page = RESULTS / group / "README.md"
    if page.is_file():
        before, rest = page.read_text(encoding="utf-8").split(BEGIN)
        page.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    print(table)


def collected(folder: Path, path: str) -> CollectedRun:
    """Return a finished run as the table has it, under ``path``."""
    ledger = folder / "ledger.jsonl"
    text = summary(ledger).decode() if ledger.is_file() else ""
    return CollectedRun(path, read_record(folder), text)


def rendered(group: str) -> str:
    """Return the runs of a group as a Markdown table, in the order of their names."""
    runs = [run for run in read_table(RESULTS) if Path(run.path).parent == Path(group)]
    return as_markdown([row(Path(run.path), run.record) for run in runs])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
