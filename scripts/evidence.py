"""Run the queue of docs/explanation/evidence.md, one process at a time, without finished runs.

    python scripts/evidence.py --list            # the order, and what is done
    DPFT_DATA=FOLDER python scripts/evidence.py
    DPFT_DATA=FOLDER python scripts/evidence.py a b

Type it in the folder that holds ladder/, which scripts/pretrain_ladder.py wrote. A study is some
rows of settings. Where rates are to be chosen, each row is first run once at every rate, with
seed 0 and scored on dev; then each row with its best rate, once a seed, scored as the task says.
Runs lie in runs/, the chosen rates in runs/rates.json. `dpft sweep` makes the runs, so that a queue
that was killed goes on by the same command.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dpft import runs

RUNS = Path("runs")
SEEDS = (1, 2, 3)
PILOT_SEED = 0


@dataclass(frozen=True)
class Study:
    """Runs that answer one question together.

    Attributes:
        finding: its letter in docs/explanation/evidence.md.
        name: begins the names of its runs.
        settings: of every run.
        rows: further settings, by the name of what is compared.
        score: that chooses rates; the larger the better.
        rates: tried for each row; none: what the settings say.
        pilot: settings of the trials alone, such as fewer epochs.
    """

    finding: str
    name: str
    settings: str
    rows: Mapping[str, str] = field(default_factory=lambda: {"": ""})
    score: str = "BLEU"
    rates: tuple[str, ...] = ()
    pilot: str = ""
    seeds: tuple[int, ...] = SEEDS


def rung(name: str) -> str:
    """A model of the ladder. The path is relative, so that records name no folder of a machine."""
    return f"model=custom model.name=gpt2-{name} model.path=ladder/{name}"


E2E = "task=e2e optim.batch_size=1024 clip=bk clip.threshold=0.1"
TINY = f"{E2E} {rung('0.8m')} eps=3"
SST2 = "task=sst2 model=minilm eps=3 optim.batch_size=1024 optim.epochs=3 optim.schedule=linear"
FILLED = "model=custom model.name=minilm-masked model.path=ladder/minilm"
HALF = "optim.epochs=1"
METHODS = {
    "full": "adapt=full",
    "lora16": "adapt=lora adapt.rank=16",
    "prefix": "adapt=prefix",
    "rgp8": "adapt=rgp adapt.rank=8",
    "top2": "adapt=top2",
    "retrain": "adapt=scratch",
}
WIDE = ("optim.lr=5e-4", "optim.lr=1e-3", "optim.lr=2e-3", "optim.lr=4e-3", "optim.lr=1e-2")
RATES = WIDE[1:4]
NARROW = ("optim.lr=1.25e-4", "optim.lr=2.5e-4", *WIDE[:4])

# In the order in which they are run: cheap first, so that every finding has something early.
STUDIES = (
    Study(
        "i", "styles", f"{TINY} optim.epochs=1 optim.lr=2e-3", {
            "uniform": "clip=uniform", "two_group": "clip=two_group", "by_type": "clip=by_type",
            "per_device": "clip=per_device", "flat_adaptive": "clip=flat_adaptive",
            "bias": "adapt=bias", "attention": "adapt=attention",
            "linear": "adapt=linear model.tied=false",
        }, seeds=(1,),
    ),
    Study("a", "size-0.8m", f"{TINY} optim.epochs=3", rates=RATES, pilot=HALF),
    Study(
        "d", "corners", f"{TINY} optim.epochs=3", {
            f"batch{batch}-lr{rate}": f"optim.batch_size={batch} optim.lr={rate}"
            for batch in (64, 1024) for rate in ("1.25e-4", "2e-3")
        },
    ),
    Study(
        "d", "thresholds", f"{TINY} optim.epochs=3 optim.lr=2e-3",
        {f"C{c}": f"clip.threshold={c}" for c in ("0.01", "1", "10", "100")},
    ),
    Study(
        "e", "sst2", f"{SST2} optim.lr=1e-3", {
            "flat": "clip=bk", "per_layer": "clip=per_layer",
            "per_layer_adaptive": "clip=per_layer_adaptive",
        }, score="accuracy",
    ),
    Study(
        "c", "infill-sst2", f"{SST2} {FILLED} clip=bk optim.lr=1e-3",
        {"head": "task.mode=head", "infill": "task.mode=infill"}, score="accuracy",
    ),
    Study("a", "size-3m", f"{E2E} {rung('3m')} eps=3 optim.epochs=3", rates=RATES, pilot=HALF),
    Study(
        "b", "methods-3m", f"{E2E} {rung('3m')} eps=3 optim.epochs=3",
        {name: row for name, row in METHODS.items() if name != "full"}, rates=WIDE, pilot=HALF,
    ),
    Study("a", "size-12m", f"{E2E} {rung('12m')} eps=3 optim.epochs=3", rates=RATES, pilot=HALF),
    Study(
        "b", "methods-12m", f"{E2E} {rung('12m')} eps=3 optim.epochs=3",
        {"lora16": METHODS["lora16"]}, rates=WIDE, pilot=HALF,
    ),
    Study(
        "j", "adam-bc-e2e", f"{TINY} optim.epochs=3",
        {"adam": "optim=adam", "adam_bc": "optim=adam_bc"}, rates=NARROW, pilot=HALF,
    ),
    Study(
        "j", "adam-bc-sst2", f"{SST2} clip=bk", {"adam": "optim=adam", "adam_bc": "optim=adam_bc"},
        score="accuracy", rates=NARROW, pilot=HALF,
    ),
    Study(
        "h", "cifar10", "task=cifar10 model=wrn16-4 clip=bk eps=8 optim=sgd optim.lr=4 "
        "optim.batch_size=4096 optim.epochs=10", score="accuracy", seeds=(1,),
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
    """For each row, the rate whose trial scored highest on dev; empty where none was searched."""
    chosen = {}
    for row, named in trials(study).items():
        scores = {
            rate: runs.read_record(RUNS / name)["scores"]["dev"]["metrics"][study.score]
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


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="Run the queue of docs/explanation/evidence.md.")
    parser.add_argument("findings", nargs="*", help="letters; default: all")
    parser.add_argument("--list", action="store_true", help="show the queue and what is done")
    args = parser.parse_args()
    chosen = [s for s in STUDIES if not args.findings or s.finding in args.findings]
    if args.list:
        for study in chosen:
            names = [*pilots(study), *finals(study, dict.fromkeys(study.rows, ""))]
            done = sum((RUNS / name / "DONE").exists() for name in names)
            print(f"{study.finding}  {study.name:14} {done} of {len(names)} runs")
        return
    failed = [study.name for study in chosen if not make(study)]
    if failed:
        sys.exit(f"not all runs of {', '.join(failed)}: see runs/sweeps/NAME/log.txt")


if __name__ == "__main__":
    main()
