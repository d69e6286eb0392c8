"""Run the queue of docs/explanation/evidence.md, one process at a time, without finished runs.

    python scripts/evidence.py --list                  # the order, hours, and what is done
    DPFT_DATA=FOLDER python scripts/evidence.py        # all of it
    DPFT_DATA=FOLDER python scripts/evidence.py li2022/c13 he2022 b
    python scripts/evidence.py --page                  # the tables of docs/explanation/evidence.md

Type it in the folder that holds ladder/, which scripts/pretrain_ladder.py wrote. First come the
claims (`dpft claims`) that laptop-scale runs decide, cheap first: of their tables and figures the
rows that the claim compares, once a seed. A run that several claims want is made once, and one that
lies in runs/ or results/ is not made again. `dpft claims` counts them, whatever made them.

Then come studies that no table has: some rows of settings. Where rates are to be chosen, each row
is first run once at every rate, with seed 0 and scored on dev; then each row with its best rate,
once a seed, scored as the task says. Their runs lie in runs/, the chosen rates in runs/rates.json.
`dpft sweep` makes all runs, so that a queue that was killed goes on by the same command.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dpft import runs
from dpft.config.errors import DpftError
from dpft.config.schema import Run
from dpft.report import markdown
from dpft.reproduce import claims
from dpft.reproduce.claims.cells import LAPTOP_SEEDS, Evidence, compare_cells
from dpft.reproduce.claims.comparison import Outcome, Side
from dpft.reproduce.claims.schema import CellsCheck, Claim, FigureCheck
from dpft.reproduce.papers import Column, PaperTable, Row
from dpft.reproduce.tables.cells import Cell, chosen
from dpft.reproduce.tables.plan import Plan, PlannedRun, make_plan, words_at
from dpft.reproduce.tables.record_index import Index, make_index

RUNS = Path("runs")
SEEDS = LAPTOP_SEEDS
# Of studies: rates are chosen with a seed that no run has which counts.
PILOT_SEED = 0
STUDY_SEEDS = (1, 2, 3)
# Core milliseconds a record and epoch, rounded up: medians of `training.seconds` in results/ where
# there are any, which a shared machine made too long rather than too short; guesses for the rest.
RATES = {
    "tiny": 5, "gpt2-0.8m": 9, "gpt2-3m": 22, "gpt2-12m": 60, "minilm": 20, "minilm-2": 7,
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
    plan: Plan
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


@dataclass(frozen=True)
class Study:
    """Runs that answer one question together.

    Attributes:
        finding: its letter in docs/explanation/evidence.md.
        name: begins the names of its runs.
        settings: of every run.
        rows: further settings, by the name of what is compared.
        rates: tried for each row; none: what the settings say.
        pilot: settings of the trials alone, such as fewer epochs.
    """

    finding: str
    name: str
    settings: str
    rows: Mapping[str, str] = field(default_factory=lambda: {"": ""})
    rates: tuple[str, ...] = ()
    pilot: str = ""
    seeds: tuple[int, ...] = STUDY_SEEDS


def rung(name: str) -> str:
    """A model of the ladder. The path is relative, so that records name no folder of a machine."""
    return f"model=custom model.name=gpt2-{name} model.path=ladder/{name}"


E2E = "task=e2e optim.batch_size=1024 clip=bk clip.threshold=0.1"
TINY = f"{E2E} {rung('0.8m')} eps=3"
HALF = "optim.epochs=1"
METHODS = {
    "lora16": "adapt=lora adapt.rank=16",
    "prefix": "adapt=prefix",
    "rgp8": "adapt=rgp adapt.rank=8",
    "top2": "adapt=top2",
    "retrain": "adapt=scratch",
}
WIDE = ("optim.lr=5e-4", "optim.lr=1e-3", "optim.lr=2e-3", "optim.lr=4e-3", "optim.lr=1e-2")
SEARCHED = WIDE[1:4]
# The settings of Li et al. 2022, Table 1, at a laptop's scale.
SST2 = (
    "task=sst2 task.limit_train=10000 task.max_length=256 model=custom model.name=minilm-2-masked "
    "model.path=ladder/minilm-2-masked adapt=full optim.lr=3e-3 optim.schedule=linear "
    "optim.batch_size=500 optim.epochs=2 optim.microbatch_tokens=512 privacy.accountant=rdp "
    "clip=bk eps=8"
)

# What no table has: styles without a row, a head of its own kind, and rates that are searched.
STUDIES = (
    Study(
        "i", "styles", f"{TINY} optim.epochs=1 optim.lr=2e-3", {
            "uniform": "clip=uniform", "two_group": "clip=two_group", "by_type": "clip=by_type",
            "per_device": "clip=per_device", "flat_adaptive": "clip=flat_adaptive",
            "bias": "adapt=bias", "attention": "adapt=attention",
            "linear": "adapt=linear model.tied=false",
        }, seeds=(1,),
    ),
    Study("c", "mean-head", f"{SST2} task.mode=head model.pooling=mean", seeds=SEEDS),
    Study("a", "size-0.8m", f"{TINY} optim.epochs=3", rates=SEARCHED, pilot=HALF),
    Study("a", "size-3m", f"{E2E} {rung('3m')} eps=3 optim.epochs=3", rates=SEARCHED, pilot=HALF),
    Study(
        "b", "methods-3m", f"{E2E} {rung('3m')} eps=3 optim.epochs=3", METHODS, rates=WIDE,
        pilot=HALF,
    ),
)  # fmt: skip


def label(study: Study, row: str, *more: str) -> str:
    """The name of a run."""
    return "-".join(filter(None, (study.name, row, *more)))


def trials(study: Study) -> dict[str, dict[str, str]]:
    """For each row, names of its trials by rate."""
    return {
        row: {
            rate: label(study, row, "pilot", rate.split("=")[1])
            for rate in (study.rates if len(study.rates) > 1 else ())
        }
        for row in study.rows
    }


def pilots(study: Study) -> dict[str, str]:
    """Settings of all trials, by name."""
    return {
        name: f"{study.settings} {study.rows[row]} {rate} {study.pilot} seed={PILOT_SEED} "
        "decode.split=dev"
        for row, named in trials(study).items()
        for rate, name in named.items()
    }


def best(study: Study) -> dict[str, str]:
    """For each row, the rate of the trial with most BLEU on dev; empty where none was searched."""
    chosen = {}
    for row, named in trials(study).items():
        scores = {
            rate: runs.read_record(RUNS / name)["scores"]["dev"]["metrics"]["BLEU"]
            for rate, name in named.items()
        }
        chosen[row] = max(scores, key=lambda rate: scores[rate]) if scores else ""
    return chosen


def finals(study: Study, rates: Mapping[str, str]) -> dict[str, str]:
    """Settings of the runs that count, by name."""
    return {
        label(study, row, f"s{seed}"): f"{study.settings} {settings} {rates[row]} seed={seed}"
        for row, settings in study.rows.items()
        for seed in study.seeds
    }


def sweep(name: str, points: Mapping[str, str]) -> bool:
    """Make the runs that are missing; say whether all are there."""
    RUNS.mkdir(exist_ok=True)
    todo = {n: settings for n, settings in points.items() if not (RUNS / n / "DONE").exists()}
    if todo:
        file = RUNS / f"{name}.txt"
        lines = [f"{settings} name={n}" for n, settings in points.items()]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = ["dpft", "sweep", "--list", str(file), "--name", name]
        print("==", *command, flush=True)
        subprocess.run(command, check=False)
    return all((RUNS / n / "DONE").exists() for n in points)


def make(study: Study) -> bool:
    """Trials, choice and runs of a study; say whether all are there."""
    if not sweep(f"{study.name}-pilot", pilots(study)):
        return False
    rates = best(study)
    file = RUNS / "rates.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    known[study.name] = rates
    file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return sweep(study.name, finals(study, rates))


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
        done = sum((RUNS / name / "DONE").exists() for name in names)
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
