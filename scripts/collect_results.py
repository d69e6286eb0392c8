"""Copy what may be published of finished runs into the table of results/, and show them.

    python scripts/collect_results.py GROUP runs/ONE=NAME runs/OTHER

Without runs it only shows the group. Of each run its record is kept. Where the group has a page,
results/GROUP/README.md, the table between its two marker lines is written anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dpft.report.comparison import as_markdown, row
from dpft.runs.record import read_record, read_table, write_table

RESULTS = Path(__file__).resolve().parent.parent / "results"
BEGIN, END = "<!-- table of the records: begin -->", "<!-- table of the records: end -->"


def main(group: str, choices: list[str]) -> None:
    """Add runs to a group, or show those that it has."""
    records = read_table(RESULTS)
    for choice in choices:
        folder, _, name = choice.partition("=")
        records[f"{group}/{name or Path(folder).name}"] = read_record(Path(folder))
    if choices:
        write_table(RESULTS, records)
    table = rendered(group)
    page = RESULTS / group / "README.md"
    if page.is_file():
        before, rest = page.read_text(encoding="utf-8").split(BEGIN)
        page.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    print(table)


def rendered(group: str) -> str:
    """Return the runs of a group as a Markdown table, in the order of their names."""
    records = read_table(RESULTS).items()
    of_group = [row(Path(path), one) for path, one in records if Path(path).parent == Path(group)]
    return as_markdown(of_group)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
