"""Copy what may be published of finished runs into results/, with one table of them.

    python scripts/collect_results.py results/sst2-minilm runs/ONE=eps3 runs/OTHER=none

Copies ``record.json`` of each run, and of its ledger a summary (`dpft.runs.summary`), into a folder
of the name after ``=``, and writes the table between the two marker lines of the folder's
README.md, which is made if absent. What the numbers are of is for the README to say.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from dpft import runs
from dpft.report.comparison import as_markdown, row
from dpft.runs.run_index import runs_below
from dpft.runs.summary import summary

BEGIN, END = "<!-- table of the records: begin -->", "<!-- table of the records: end -->"


def main(folder: Path, choices: list[str]) -> None:
    for choice in choices:
        run, _, name = choice.partition("=")
        copy(Path(run), folder / (name or Path(run).name))
    table = render(folder)
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else f"{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
    print(table)


def copy(run: Path, target: Path) -> None:
    """A run's record, and the summary of its ledger if it is private."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run / "record.json", target / "record.json")
    if (run / "ledger.jsonl").is_file():
        (target / "ledger.jsonl").write_bytes(summary(run / "ledger.jsonl"))


def render(folder: Path) -> str:
    """The table of all records below ``folder``, in order of their names."""
    return as_markdown([row(path, runs.read_record(path)) for path in runs_below(folder)])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
