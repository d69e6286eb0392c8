"""Time and memory of checking, starting and resuming, against the number of records.

    python scripts/scale_records.py measure --out results/scale/records.csv
    python scripts/scale_records.py plot --out results/scale/records.csv
    python scripts/scale_records.py table --out results/scale/records.csv

Rows are made up and seeded: five words in, thirteen words out, 134 bytes each. Each stage is a
fresh process of `dpft`: `check` is `dpft data check`, `start` is `dpft train` until the checkpoint
of its first step stands, and `resume` is the same command after the process was killed there, until
the next checkpoint stands. What is in the file already is not measured again, so that the same
command goes on after it was stopped. results/scale/README.md says what was found.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

STAGES = ("check", "start", "resume")
MEASURED = ("cpu_s", "wall_s", "waited_s", "rss_mib", "pss_mib", "process_mib")
# The load is the machine's over a stage's last minute: wall time tells little where it is high.
FIELDS = ("version", "rows", "stage", "round", *MEASURED, "load")
REPEATS = {10_000: 3, 100_000: 3, 1_000_000: 3, 10_000_000: 2}
# Of ten million rows: seconds of wall time, and MB of all processes together.
GOALS = {"start": 600.0, "resume": 60.0}
GOAL_MB = 2000.0
MB = 2**20 / 1e6  # of a MiB
BATCH = 16
DATA = ("task.test_share=0.01", "task.max_length=64")
TRAINING = (
    *("task=text2text", "task.limit_eval=100", "model=tiny", f"optim.batch_size={BATCH}"),
    *("privacy.noise_multiplier=1", "privacy.noise_seed=1", "optim.steps=1000"),
    *("checkpoint_every=1", "name=scale", "device=cpu"),
)
# Seconds between two looks at the processes, each of which costs milliseconds; a hundredth of the
# time so far where that is longer.
PAUSE, LONGEST_PAUSE = 0.2, 2.0


def generate(path: Path, rows: int) -> None:
    """Write made-up rows as JSON lines, unless they are there; fewer rows are the first of more."""
    if path.exists():
        return
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randrange(2, 9))) for _ in range(5000)]
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        for _ in range(rows):
            drawn = rng.choices(words, k=18)
            source, target = " ".join(drawn[:5]), " ".join(drawn[5:])
            file.write(f'{{"source": "{source}", "target": "{target}"}}\n')
    partial.rename(path)


@dataclass
class Taken:
    """What a process and its descendants took.

    Attributes:
        cpu_s: user and system seconds, of all that it waited for too (`wait4`).
        wall_s: seconds until it ended, or was killed since it was far enough.
        waited_s: seconds for which the first process, and after it the child that waited longest,
            were ready to run and had no core, since others had it (the kernel's schedstat). Wall
            time less these is about what it would be on a machine of one's own.
        rss_mib: the most that all together held at one look, every 0.2 to 2 s: the sum of their
            resident sets, in which what several of them share counts for each.
        pss_mib: the same by proportional sets, in which pages that other programs of the machine
            have too, such as libraries, count in part.
        process_mib: resident memory at the peak of the largest of them (`ru_maxrss`); where this
            process itself holds more, that, since a child begins as its image.
    """

    cpu_s: float
    wall_s: float
    waited_s: float
    rss_mib: float
    pss_mib: float
    process_mib: float


def measured(command: Sequence[str], enough: Callable[[], bool] | None = None) -> Taken:
    """Run a command until it ends, or until it is far enough, where it is killed.

    Raises:
        SystemExit: if it failed, or ended before it was far enough.
    """
    began, killed = time.perf_counter(), False
    with TemporaryFile("w+") as said:
        # A session of its own: all of its processes are found by its number.
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
        )
        looks = _Looks(process.pid)
        try:
            while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
                if enough is not None and enough():
                    process.kill()
                    killed = True
                    ended = os.wait4(process.pid, 0)
                    break
                looks.look()
                so_far = time.perf_counter() - began
                time.sleep(min(max(PAUSE, so_far / 100), LONGEST_PAUSE))
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        _, status, used = ended
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if killed != (enough is not None) or (not killed and status):
            said.seek(0)
            sys.exit(f"{' '.join(command)} ended with {process.returncode}\n{said.read()}")
    return Taken(
        cpu_s=used.ru_utime + used.ru_stime,
        wall_s=wall,
        waited_s=looks.waited(),
        rss_mib=looks.peaks["Rss:"] / 2**10,
        pss_mib=looks.peaks["Pss:"] / 2**10,
        process_mib=used.ru_maxrss / 2**10,
    )


class _Looks:
    """What is seen of all processes of a session.

    Attributes:
        peaks: in KiB, of the sums of RSS and of PSS.
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self._waited: dict[int, int] = {}  # nanoseconds, by process
        self.peaks = {"Rss:": 0, "Pss:": 0}

    def look(self) -> None:
        """Add up what they hold now."""
        totals = dict.fromkeys(self.peaks, 0)
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal():
                continue
            try:
                stat = (folder / "stat").read_text().rsplit(")", 1)[1]
                if int(stat.split()[3]) != self._session:
                    continue
                lines = (folder / "smaps_rollup").read_text().splitlines()
                waited = (folder / "schedstat").read_text().split()[1]
            except (OSError, IndexError):  # it has ended meanwhile
                continue
            self._waited[int(folder.name)] = int(waited)
            for name, value, *_ in map(str.split, lines[1:]):
                if name in totals:
                    totals[name] += int(value)
        self.peaks = {name: max(value, totals[name]) for name, value in self.peaks.items()}

    def waited(self) -> float:
        """Seconds without a core, of the first process and of one other."""
        first = self._waited.pop(self._session, 0)
        return (first + max(self._waited.values(), default=0)) / 1e9


def checkpoints(run: Path) -> int:
    """Steps behind the newest whole checkpoint; 0 where there is none."""
    folders = (file.parent.name for file in (run / "checkpoints").glob("step-*/manifest.json"))
    return max((int(name.removeprefix("step-")) for name in folders), default=0)


def stage(name: str, rows: int, work: Path) -> Taken:
    """Measure one stage; a run to resume is started, if none is there."""
    data, runs = work / f"{rows}.jsonl", work / f"runs-{rows}"
    generate(data, rows)
    dpft = [sys.executable, "-m", "dpft"]
    given = [f"task.train_file={data}", *DATA]
    if name == "check":
        return measured([*dpft, "data", "check", "text2text", *given])
    train = [*dpft, "train", *TRAINING, *given, f"runs_dir={runs}"]
    if name == "start":
        shutil.rmtree(runs, ignore_errors=True)
    elif not checkpoints(runs / "scale"):
        stage("start", rows, work)
    behind = checkpoints(runs / "scale")
    return measured(train, lambda: checkpoints(runs / "scale") > behind)


def read(out: Path) -> list[dict[str, str]]:
    """What was measured so far; ``free_s`` are wall seconds less those without a core."""
    if not out.exists():
        return []
    with out.open(newline="") as file:
        found = list(csv.DictReader(file))
    for row in found:
        row["free_s"] = ""
        if row["waited_s"]:
            row["free_s"] = str(float(row["wall_s"]) - float(row["waited_s"]))
    return found


def append(out: Path, row: Mapping[str, Any]) -> None:
    """Write one more row."""
    new = not out.exists()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def measure(out: Path, repeats: Mapping[int, int], work: Path, version: str, keep: bool) -> None:
    """Measure what is not in the file yet, round by round; files are removed after the last."""
    found = read(out)
    done = {(r["version"], int(r["rows"]), r["stage"], int(r["round"])) for r in found}
    work.mkdir(parents=True, exist_ok=True)
    for number in range(1, max(repeats.values()) + 1):
        for rows, count in repeats.items():
            if number > count:
                continue
            for name in STAGES:
                if (version, rows, name, number) in done:
                    continue
                taken = stage(name, rows, work)
                row = {"version": version, "rows": rows, "stage": name, "round": number}
                row |= {key: f"{value:.2f}" for key, value in vars(taken).items()}
                row["load"] = f"{os.getloadavg()[0]:.1f}"
                append(out, row)
                print(row, file=sys.stderr, flush=True)
            if number == count and not keep:
                (work / f"{rows}.jsonl").unlink(missing_ok=True)
                shutil.rmtree(work / f"runs-{rows}", ignore_errors=True)
    if not keep and not any(work.iterdir()):
        work.rmdir()


Key = tuple[str, str, int]
"""Version, stage and rows."""
_UNKNOWN = [float("nan")] * 3


def medians(
    found: Sequence[Mapping[str, str]], column: str, unit: float = 1.0
) -> dict[Key, list[float]]:
    """Least, median and largest of a column, for each version, stage and number of rows."""
    values: dict[Key, list[float]] = {}
    for row in found:
        if row[column]:
            key = row["version"], row["stage"], int(row["rows"])
            values.setdefault(key, []).append(unit * float(row[column]))
    return {key: [min(v), statistics.median(v), max(v)] for key, v in values.items()}


def table(out: Path) -> str:
    """Medians, as Markdown."""
    found = read(out)
    columns = [medians(found, name) for name in ("cpu_s", "wall_s", "free_s")]
    columns += [medians(found, name, MB) for name in ("rss_mib", "pss_mib", "process_mib")]
    lines = [
        "| version | rows | stage | CPU s | wall s | less waiting "
        "| RSS of all, MB | PSS of all, MB | largest process, MB | runs |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for version, name, rows in sorted(
        columns[0], key=lambda key: (key[0], key[2], key[1] != "check", key[1] != "start")
    ):
        key = (version, name, rows)
        *seconds, rss, pss, process = (column.get(key, _UNKNOWN)[1] for column in columns)
        count = sum((r["version"], r["stage"], int(r["rows"])) == key for r in found)
        cells = [f"{x:.3g}" if x < 100 else f"{x:,.0f}" for x in seconds]
        cells += [f"{x:,.0f}" for x in (rss, pss, process)]
        lines.append(f"| {version} | {rows:,} | {name} | {' | '.join(cells)} | {count} |")
    return "\n".join(lines).replace("nan", "")


def plot(out: Path) -> None:
    """CPU time, wall time and memory against the number of rows, beside the file as PNG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from dpft.reproduce.figures.draw import DPI, RC

    found = read(out)
    with rc_context(RC):
        figure = Figure(figsize=(11, 3.8), layout="constrained")
        cpu, wall, memory = figure.subplots(1, 3)
        _panel(cpu, "CPU seconds of all processes", medians(found, "cpu_s"))
        _panel(wall, "wall seconds less waiting; dashed: with it", medians(found, "free_s"))
        _faint(wall, medians(found, "wall_s"))
        _panel(memory, "peak memory of all processes, MB", medians(found, "rss_mib", MB))
        for name, seconds in GOALS.items():
            _goal(wall, f"goal: {name} at 10 million", seconds, _COLOURS[name])
        _goal(memory, "goal at 10 million", GOAL_MB, "black")
        cpu.legend(frameon=False)
        figure.savefig(out.with_suffix(".png"), dpi=DPI)


_COLOURS = dict(zip(STAGES, ("#0072B2", "#D55E00", "#009E73"), strict=True))


_HOLLOW = {"check": 5, "start": 10, "resume": 5}  # start and resume lie on each other


def _panel(axes: Any, label: str, spread: Mapping[Key, Sequence[float]]) -> None:
    """Medians by the number of rows, ranges as bars; what was measured before is hollow."""
    for (name, colour), marker in zip(_COLOURS.items(), "o^s", strict=True):
        for version in sorted({key[0] for key in spread}):
            points = sorted((k[2], v) for k, v in spread.items() if k[:2] == (version, name))
            if not points:
                continue
            low, middle, high = zip(*(values for _, values in points), strict=True)
            before = version == "before"
            axes.errorbar(
                [rows for rows, _ in points],
                middle,
                [
                    [m - least for m, least in zip(middle, low, strict=True)],
                    [most - m for m, most in zip(middle, high, strict=True)],
                ],
                fmt=marker if before else f"{marker}-",
                color=colour,
                markerfacecolor="none" if before else colour,
                markersize=_HOLLOW[name] if before else None,
                label=f"{name}, before" if before else name,
            )
    axes.set(xscale="log", yscale="log", xlabel="rows", ylabel=label)


def _faint(axes: Any, spread: Mapping[Key, Sequence[float]]) -> None:
    """Medians without marks."""
    for name, colour in _COLOURS.items():
        points = sorted((k[2], v[1]) for k, v in spread.items() if k[:2] == ("this", name))
        axes.plot(*zip(*points, strict=True), "--", color=colour, alpha=0.4)


def _goal(axes: Any, text: str, value: float, colour: str) -> None:
    axes.axhline(value, color=colour, linestyle="dotted")
    place = {"xytext": (0, 2), "textcoords": "offset points", "fontsize": 7}
    axes.annotate(text, (1e4, value), **place)


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what is typed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["measure", "plot", "table"])
    parser.add_argument("--out", type=Path, required=True, help="the CSV file")
    parser.add_argument("--sizes", type=int, nargs="+", default=[*REPEATS], help="numbers of rows")
    parser.add_argument("--rounds", type=int, help="of each size; without: fewer for large ones")
    parser.add_argument("--work", type=Path, default=Path("build/scale"), help="for data and runs")
    parser.add_argument("--version", default="this", help="what the rows are called in the file")
    parser.add_argument("--keep", action="store_true", help="keep data and runs")
    given = parser.parse_args(arguments)
    if given.verb == "plot":
        plot(given.out)
    elif given.verb == "table":
        print(table(given.out))
    else:
        repeats = {rows: given.rounds or REPEATS.get(rows, 1) for rows in given.sizes}
        measure(given.out, repeats, given.work, given.version, given.keep)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"stopped by signal {number}"))
    main()
