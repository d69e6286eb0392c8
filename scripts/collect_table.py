"""Copy the runs behind a paper's table into results/, and render the table from what lies there.

    python scripts/collect_table.py li2022/7 runs results/li2022-7-laptop

Records that lie under results/ already stay where they are. ``table.md`` is what ``dpft table
PAPER/N scale=laptop --runs results`` shows; `scripts/collect_results.py` writes the table of the
records into README.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import collect_results

from dpft.reproduce import papers
from dpft.reproduce.tables.cells import Filled, chosen, fill
from dpft.reproduce.tables.epsilons import epsilons
from dpft.reproduce.tables.plan import make_plan
from dpft.reproduce.tables.record_index import make_index
from dpft.reproduce.tables.render import as_markdown
from dpft.sweep.points import labels

RESULTS = Path("results")


def main(name: str, runs: Path, folder: Path) -> None:
    """Copy, then render."""
    plan = filled(name).plan
    index = make_index([RESULTS, runs])
    words = [run.words for run in plan.distinct]
    names = dict(zip(words, short_names(words), strict=True))
    choices = {}
    for (_, j), run in plan.runs.items():
        for seed, found in chosen(run, plan, index, plan.columns[j]).items():
            if RESULTS not in found.path.parents:
                label = names[run.words] + (f"-s{seed}" if len(plan.seeds) > 1 else "")
                choices[label] = f"{found.path}={label}"
    collect_results.main(folder, list(choices.values()))
    (folder / "table.md").write_text(as_markdown(filled(name)), encoding="utf-8")


def filled(name: str) -> Filled:
    """A table at the laptop's scale, filled from the committed results."""
    table = papers.load(*name.split("/", 1))
    plan = make_plan(table, "laptop")
    printed = epsilons(table, plan.rows)
    return fill(plan, make_index([RESULTS]), printed)


def short_names(words: Sequence[Sequence[str]]) -> list[str]:
    """A folder's name for each run: the settings that tell it from the others.

    Raises:
        ValueError: if two have one name.
    """
    names = ["-".join(map(_short, label.split())) for label in labels(words)]
    if len({*names}) < len(names):
        raise ValueError(f"two runs have one name: {', '.join(sorted(names))}")
    return names


def _short(word: str) -> str:
    """``clip=bk`` is bk, ``optim.lr=1e-3`` is lr1e-3."""
    key, _, value = word.partition("=")
    value = re.sub(r"[^\w.+-]+", "_", value).strip("_")
    return f"{key.rpartition('.')[2]}{value}" if value[:1].isdigit() else value


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
