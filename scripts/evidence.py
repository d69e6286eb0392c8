"""Run the queue of docs/explanation/evidence.md, one process at a time, without finished runs.

    python scripts/evidence.py --list                  # the order, hours, and what is done
    DPFT_DATA=FOLDER python scripts/evidence.py        # all of it
    DPFT_DATA=FOLDER python scripts/evidence.py li2022/c13 he2022 b
    python scripts/evidence.py --page                  # the tables of docs/explanation/evidence.md

Type it in the folder that holds ladder/, which scripts/pretrain_ladder.py wrote. First come the
claims (`dpft claims`) that laptop-scale runs decide, cheap first: of their tables and figures the
rows that the claim compares, once a seed. A run that several claims want is made once, and one that
lies in runs/ or results/ is not made again. `dpft claims` counts them, whatever made them.

Then come studies that no table has (`evidence_studies.py`). `dpft sweep` makes all runs, so that a
queue that was killed goes on by the same command.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from evidence_studies import RUNS, STUDIES, Study, finals, home, make, pilots

from dpft.config.errors import DpftError
from dpft.config.schema import Run
from dpft.report import markdown
from dpft.reproduce import claims
from dpft.reproduce.claims.cells import LAPTOP_SEEDS, Evidence, compare_cells
from dpft.reproduce.claims.comparison import Outcome, Side
from dpft.reproduce.claims.schema import CellsCheck, Claim, FigureCheck
from dpft.reproduce.papers import Column, PaperTable, Row
from dpft.reproduce.tables.cells import Cell, chosen
from dpft.reproduce.tables.plan import PlannedRun, TablePlan, make_plan, words_at
from dpft.reproduce.tables.record_index import Index, make_index

SEEDS = LAPTOP_SEEDS
# Core milliseconds a record and epoch, rounded up: medians of `training.seconds` in results/ where
# there are any, which a shared machine made too long rather than too short; guesses for the rest.
RATES = {
    "tiny": 5, "gpt2-0.8m": 9, "gpt2-3m": 22, "minilm": 20, "minilm-2": 7,
    "minilm-2-masked": 7, "random-wrn": 3,
}  # fmt: skip
# Core minutes to start, check the first batch and score, by task; texts are decoded.
FIXED = {"e2e": 1.5, "dart": 2.0, "cifar10": 0.3}
SMALL_BATCH = 32  # below it a record takes about twice as long


class Wanted(Evidence):
    """No evidence at all; notes which cells of runs at a scale a claim compares."""

    def __init__(self, scale: str) -> None:
        super().__init__(Index(), [])
        self.scale = scale
        self.cells: list[tuple[PaperTable, Row, Column]] = []

    def cell(self, table: PaperTable, row: Row, column: Column, scale: str) -> Cell:
        """As without records."""
        possible = row.run is not None and column.metrics and row.printed[column.key] is not None
        if scale == self.scale and possible:
            self.cells.append((table, row, column))
        return super().cell(table, row, column, scale)


@dataclass(frozen=True)
class Need:
    """A run that a claim compares, with the score that it is compared by.

    Attributes:
        source: ``table li2022/7``, or ``figure``.
        plan: of its cell alone.
        planned: its settings.
        column: the score.
    """

    source: str
    plan: TablePlan
    planned: PlannedRun
    column: Column

    def lacking(self, index: Index) -> list[int]:
        """The seeds that no record has."""
        have = chosen(self.planned, replace(self.plan, seeds=SEEDS), index, self.column)
        return [seed for seed in SEEDS if seed not in have]


def needs(claim: Claim, scale: str = "laptop") -> list[Need]:
    """The runs at a scale that decide a claim, each once; none where none does."""
    side = Side.LAPTOP if scale == "laptop" else Side.PAPER
    found: dict[tuple[str, ...], Need] = {}
    for check in claim.checks:
        if not (isinstance(check, CellsCheck) and check.ours):
            continue
        wanted = Wanted(scale)
        compared, _ = compare_cells(check, wanted)
        # A row that is compared with a copied number alone decides nothing at this scale.
        if not any(c.side is side and c.outcome is Outcome.LACKING for c in compared):
            continue
        kind = "figure" if isinstance(check, FigureCheck) else "table"
        for table, row, column in wanted.cells:
            words = words_at(table, column, row, scale)
            if words not in found:
                plan = make_plan(replace(table, rows=(row,), columns=(column,)), scale)
                found[words] = Need(f"{kind} {table.name}", plan, plan.runs[0, 0], column)
    return list(found.values())


def sources(own: Iterable[Need]) -> str:
    """The tables and figures whose rows are compared, as they are typed."""
    return ", ".join(dict.fromkeys(need.source for need in own))


def minutes(run: Run) -> float:
    """What a run may take of one core."""
    task, optim = run.task, run.optim
    records = task.get("limit_train") or task["train_size"]
    if task["name"] == "dart" and task.get("train_split") == "dev":
        records = 6_980
    epochs = optim.epochs or 0 if optim.steps is None else 0
    slow = 2 if (optim.batch_size or SMALL_BATCH) < SMALL_BATCH else 1
    seconds = slow * RATES[run.model.name] * records * epochs / 1000
    return float(seconds / 60 + FIXED.get(task["name"], 0.5))


def queue(names: Sequence[str] = ()) -> list[tuple[Claim, list[Need], list[Need]]]:
    """Claims that runs on a laptop decide, cheap first.

    With each its runs, and those of them that no claim before it has.
    """
    asked = [one for one in claims.load() if not names or {one.name, one.paper} & {*names}]
    listed = [(claim, own) for claim in asked if (own := needs(claim))]
    listed.sort(key=lambda one: sum(minutes(need.planned.run) for need in one[1]))
    seen: set[str] = set()
    ordered = []
    for claim, own in listed:
        new = [need for need in own if need.planned.key not in seen]
        seen |= {need.planned.key for need in new}
        ordered.append((claim, own, new))
    return ordered


def rungs(own: Iterable[Need]) -> list[str]:
    """The ladder's rungs that the runs begin with."""
    paths = dict.fromkeys(str(need.planned.run.model.path) for need in own)
    return [path for path in paths if path.startswith("ladder/")]


def decide(claim: Claim, own: Sequence[Need]) -> bool:
    """Make what a claim lacks; say whether all is there."""
    absent = [path for path in rungs(own) if not Path(path).is_dir()]
    if absent:
        commands = "; ".join(
            f"python scripts/pretrain_ladder.py {Path(path).name} --text text --out ladder"
            for path in absent
        )
        print(f"== {claim.name} waits for {', '.join(absent)}: {commands}", flush=True)
        return False
    index = records()
    lines = [
        shlex.join(need.planned.overrides(seed)) for need in own for seed in need.lacking(index)
    ]
    if not lines:
        return True
    name = claim.name.replace("/", "-")
    file = RUNS / f"{name}.txt"
    RUNS.mkdir(exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = ["dpft", "sweep", "--list", str(file)]
    print(f"== {claim.name}:", *command, flush=True)
    subprocess.run(command, check=False)
    return not any(need.lacking(records()) for need in own)


def records() -> Index:
    """Those in runs/ and results/, here or beside this file."""
    folders = [RUNS, Path("results"), Path(__file__).parents[1] / "results"]
    return make_index([folder for folder in dict.fromkeys(folders) if folder.is_dir()])


def page() -> str:
    """The table of docs/explanation/evidence.md, of what no record changes."""
    heads = ("claim", "rows of", "settings", "new", "core hours", "longest run, minutes", "rungs")
    rows: list[tuple[object, ...]] = []
    total = 0.0
    for claim, own, new in queue():
        hours = len(SEEDS) * sum(minutes(need.planned.run) for need in new) / 60
        total += hours
        longest = max(minutes(need.planned.run) for need in own)
        ladder = ", ".join(f"`{Path(path).name}`" for path in rungs(own)) or "-"
        name, spent = f"`{claim.name}`", f"{hours:.1f}"
        rows.append((name, sources(own), len(own), len(new), spent, f"{longest:.0f}", ladder))
    rows.append(("all", "", "", "", f"{total:.0f}", "", ""))
    return markdown.table(heads, rows) + "\n"


def show(listed: Sequence[tuple[Claim, list[Need], list[Need]]], studies: Iterable[Study]) -> None:
    """The order, the hours that are left, and what is done."""
    index = records()
    for claim, own, new in listed:
        left = sum(minutes(need.planned.run) * len(need.lacking(index)) for need in new)
        done = sum(len(SEEDS) - len(need.lacking(index)) for need in own)
        total = len(own) * len(SEEDS)
        progress = f"{done:3} of {total:3} runs, {left / 60:4.1f} core hours"
        print(f"{claim.name}  {progress}  {sources(own)}")
    for study in studies:
        names = [*pilots(study), *finals(study, dict.fromkeys(study.rows, ""))]
        done = sum(home(name) is not None for name in names)
        print(f"{study.finding:10}  {done:3} of {len(names):3} runs  {study.name}")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="Run the queue of docs/explanation/evidence.md.")
    parser.add_argument("names", nargs="*", help="claims, papers, or letters; default: all")
    parser.add_argument("--list", action="store_true", help="show the queue and what is done")
    parser.add_argument("--page", action="store_true", help="the table of the documentation")
    args = parser.parse_args()
    try:
        begin(args)
    except DpftError as error:
        sys.exit(str(error))


def begin(args: argparse.Namespace) -> None:
    """Show or run what was asked for."""
    if args.page:
        print(page(), end="")
        return
    letters = {study.finding for study in STUDIES}
    papers = [name for name in args.names if name not in letters]
    for name in papers:
        claims.load(name)  # refuses what there is not
    listed = queue(papers) if papers or not args.names else []
    studies = [s for s in STUDIES if not args.names or s.finding in args.names]
    if args.list:
        show(listed, studies)
        return
    failed = [claim.name for claim, own, _ in listed if not decide(claim, own)]
    failed += [study.name for study in studies if not make(study)]
    if failed:
        sys.exit(f"not all runs of {', '.join(failed)}: see runs/sweeps/NAME/log.txt")


if __name__ == "__main__":
    main()
