"""Time and memory of checking and preparing many records; results/scale/README.md has the commands.

    python scripts/scale_records.py measure --sizes 10000 100000 --out results/scale/records.csv
    python scripts/scale_records.py plot --out results/scale/records.csv

Rows are made up: five words in, twelve words out, about 134 bytes each. What is measured already is
not measured again, so that a run of the script that was stopped goes on.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

STAGES = ("check", "prepare", "resume")
FIELDS = ("version", "rows", "stage", "wall_s", "cpu_s", "peak_mib")
SETTINGS = (
    *("task=text2text", "task.max_length=64", "model=tiny", "optim.batch_size=256"),
    *("optim.steps=1", "privacy.noise_seed=1", "name=scale", "device=cpu"),
)
HOLD_OUT = "task.test_share=0.0001"


def generate(path: Path, rows: int) -> None:
    """Write made-up rows as JSON lines, unless they are there."""
    if path.exists():
        return
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randrange(2, 9))) for _ in range(5000)]
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        for _ in range(rows):
            row = {
                "source": " ".join(rng.choices(words, k=5)),
                "target": " ".join(rng.choices(words, k=12)),
            }
            file.write(json.dumps(row) + "\n")
    partial.rename(path)


def measured(command: Sequence[str], package: Path) -> dict[str, float]:
    """Wall and CPU seconds of a command and its children, and the memory of the largest of them."""
    environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
    wrapped = [sys.executable, __file__, "wrapped", *command]
    done = subprocess.run(wrapped, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def wrapped(command: Sequence[str]) -> None:
    """Run a command, and print what it took; in a process that has no other children."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, own = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    if status:
        sys.exit(f"{' '.join(command)} ended with status {status}")
    print(
        json.dumps(
            {
                "wall_s": round(seconds, 2),
                # With the children that it waited for; the memory is that of the largest.
                "cpu_s": round(own.ru_utime + own.ru_stime, 2),
                "peak_mib": round(own.ru_maxrss / 1024),
            }
        )
    )


def prepare(overrides: Sequence[str]) -> None:
    """All of a run that stands before its first step."""
    from omegaconf import OmegaConf

    from dpft import runs
    from dpft.config.compose import compose
    from dpft.config.schema import parse
    from dpft.runs.paths import run_path
    from dpft.tasks import load_task
    from dpft.training.progress import Progress
    from dpft.training.setup import prepare as prepared

    run = parse(compose(list(overrides)))
    text = OmegaConf.to_yaml(OmegaConf.create(dict(run.raw)))
    path = run_path(run)
    with runs.RunDirectory.open(path, run.identity(), text) as directory, Progress() as progress:
        found = prepared(run, load_task(run.task), directory, progress)
        print(found.data, file=sys.stderr)
        own, child = (
            resource.getrusage(whose).ru_maxrss // 1024
            for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        print(f"peak: {own} MiB itself, {child} MiB a child", file=sys.stderr)


def measure(arguments: argparse.Namespace) -> None:
    """Measure what is not in the file yet."""
    out: Path = arguments.out
    done = set()
    if out.exists():
        with out.open(newline="") as file:
            done = {(r["version"], int(r["rows"]), r["stage"]) for r in csv.DictReader(file)}
    arguments.work.mkdir(parents=True, exist_ok=True)
    for rows in arguments.sizes:
        data = arguments.work / f"{rows}.jsonl"
        runs = arguments.work / f"runs-{arguments.version}-{rows}"
        for stage in STAGES:
            if (arguments.version, rows, stage) in done or stage not in arguments.stages:
                continue
            generate(data, rows)
            command = [sys.executable, "-m", "dpft.cli.app", "data", "check", "text2text"]
            command += [f"task.train_file={data}", HOLD_OUT]
            if stage != "check":
                if stage == "prepare":
                    shutil.rmtree(runs, ignore_errors=True)
                settings = [*SETTINGS, f"task.train_file={data}", HOLD_OUT, f"runs_dir={runs}"]
                command = [sys.executable, __file__, "prepare", *settings]
            found = {"version": arguments.version, "rows": rows, "stage": stage}
            found |= measured(command, arguments.package)
            new = not out.exists()
            with out.open("a", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                if new:
                    writer.writeheader()
                writer.writerow(found)
            print(found, file=sys.stderr)
        if arguments.clean:
            shutil.rmtree(runs, ignore_errors=True)
            data.unlink(missing_ok=True)


def plot(out: Path) -> None:
    """CPU time and memory against the number of rows, beside the file as PNG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    style = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with rc_context(style):
        figure = Figure(figsize=(8, 3.4), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, column, label in (
            (panels[0], "cpu_s", "CPU seconds"),
            (panels[1], "peak_mib", "peak memory of the largest process, MiB"),
        ):
            for stage, marker in zip(STAGES, "o^s", strict=True):
                for version, colour in (("before", "#b35900"), ("this", "#1f4e79")):
                    found = sorted(
                        (int(row["rows"]), float(row[column]))
                        for row in rows
                        if (row["version"], row["stage"]) == (version, stage)
                    )
                    name = {"check": "data check", "prepare": "first start", "resume": "next start"}
                    axes.plot(
                        *zip(*found, strict=True),
                        color=colour,
                        marker=marker,
                        linestyle={"check": ":", "prepare": "-", "resume": "--"}[stage],
                        label=f"{name[stage]}, {version}",
                    )
            axes.set(xscale="log", yscale="log", xlabel="training records", ylabel=label)
        panels[0].legend(fontsize=7, frameon=False)
        figure.savefig(out.with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    if sys.argv[1] == "wrapped":
        wrapped(sys.argv[2:])
    elif sys.argv[1] == "prepare":
        prepare(sys.argv[2:])
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("verb", choices=["measure", "plot"])
        parser.add_argument("--out", type=Path, required=True)
        parser.add_argument("--sizes", type=int, nargs="*", default=[])
        parser.add_argument("--stages", nargs="*", default=STAGES)
        parser.add_argument("--version", default="this")
        parser.add_argument("--package", type=Path, default=Path(__file__).parents[1])
        parser.add_argument("--work", type=Path, default=Path("scale-work"))
        parser.add_argument("--clean", action="store_true")
        found = parser.parse_args()
        if found.verb == "plot":
            plot(found.out)
        else:
            measure(found)
