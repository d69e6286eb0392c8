"""Kill runs with SIGKILL at random moments, continue them, and compare them with unbroken ones.

Each life of a run is a process forked from one that has imported everything. Half of the kills
come by the clock, half at a random operation on the run's files, so that the short moments in which
files are written are met too; a killed `os.write` leaves half of what it was to write. After each
kill the ledger is compared with what else lies there, and in the end all files with the unbroken
run's.

    python -m tests.torture --kills 1000 --folder build/torture

The journal in that folder has a line for each run, so that the same command goes on after it was
stopped; another ``--seed`` draws other moments.
"""

import argparse
import functools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dpft import runs
from dpft.config.compose import compose
from tests.processes import Forked

_SMALL = (
    *("task.source=sample", "task.limit_train=12", "task.limit_eval=1", "optim.batch_size=4"),
    *("optim.steps=4", "checkpoint_every=1", "threads=1", "device=cpu"),
)
_TEXT = ("task.max_length=96", "decode=greedy", "decode.max_new_tokens=4")
_E2E = ("task=e2e", *_TEXT)
_CLASSES = ("task=sst2", "task.max_length=48", "model=random-bert")
_USERS = (
    *("task=text2text", "task.unit=user", "task.user_column=user", "task.limit_train=null"),
    *("task.records_per_user=2", "privacy.noise_multiplier=1", *_TEXT),
)
SEEDED = "privacy.noise_seed=1"  # without it the run draws a key, and has to keep it

KINDS = MappingProxyType(
    {
        "e2e, ghost": (*_E2E, "clip=ghost"),
        "e2e, bk, seed": (*_E2E, "clip=bk", SEEDED),
        "e2e, adaptive": (*_E2E, "clip=per_layer_adaptive"),
        "e2e, none": (*_E2E, "clip=none"),
        "e2e, ghost, LoRA": (*_E2E, "clip=ghost", "adapt=lora"),
        "sst2, ghost": (*_CLASSES, "clip=ghost"),
        "sst2, bk": (*_CLASSES, "clip=bk"),
        "sst2, adaptive, seed": (*_CLASSES, "clip=per_layer_adaptive", SEEDED),
        "sst2, none": (*_CLASSES, "clip=none"),
        "users, bk": (*_USERS, "clip=bk", "model=random-gpt2"),
        "users, adaptive": (*_USERS, "clip=per_layer_adaptive", "model=random-gpt2"),
        "audited, bk": (*_CLASSES, "clip=bk", "audit.gradients=4"),
    }
)
MOST_KILLS = 9  # of one run
_SECONDS = 300.0  # no life takes as long


@dataclass(frozen=True)
class Kill:
    """How one life ended.

    Attributes:
        by: ``clock`` or ``operation``.
        at: seconds after the life began, or how many operations on the run's files it had.
        steps: in the ledger (of a run without privacy: in its checkpoints) when it was dead.
        stage: what was there by then.
    """

    by: str
    at: float
    steps: int
    stage: str


@dataclass
class Result:
    """What came of one run.

    Attributes:
        number: from 0.
        kind: of `KINDS`.
        kills: each life that was killed.
        differing: bits that are not the unbroken run's, by file; -1 for a file too many or too few.
        under: steps that a ledger counted too few, or lines that it lost, after a kill.
        leftovers: temporary files of killed processes that the end found.
        refused: what the run said where it did not go on.
    """

    number: int
    kind: str
    kills: list[Kill] = field(default_factory=list)
    differing: dict[str, int] = field(default_factory=dict)
    under: int = 0
    leftovers: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def fine(self) -> bool:
        """Whether nothing is different, lost or left."""
        return not (self.differing or self.under or self.leftovers or self.refused)


# --- one life, in a process of its own --------------------------------------------------------


def live(raw: dict[str, Any], operations: int | None) -> None:
    """One life of a run; ended by SIGKILL at that many operations on its files, if ever."""
    from dpft.config.schema import parse
    from dpft.tasks.metrics import coco, java
    from dpft.training.run import run_experiment

    # Java takes a second and has no part in what is tested.
    coco.ptb_tokenize = lambda texts: [text.lower() for text in texts]  # type: ignore
    coco.meteor = lambda captions, grouped: len(captions) / (1 + len(grouped))  # type: ignore
    java.java_version = lambda: "none"  # type: ignore
    # The secret keys of all runs are the same, and so are their noise and their batches.
    os.urandom = lambda count: bytes(range(count))
    Operations(Path(raw["runs_dir"], raw["name"]), operations).watch()
    run_experiment(parse(raw))


class Operations:
    """Counts what a process does to the files of a run, and kills it amid the last one."""

    _EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")

    def __init__(self, folder: Path, last: int | None) -> None:
        self._folder, self._last = str(folder), last
        self.count = 0

    def watch(self) -> None:
        """From now on."""
        write, sync = os.write, os.fsync

        def torn(descriptor: int, data: bytes) -> int:
            if self._is_last():
                write(descriptor, data[: len(data) // 2])
                self._die()
            return write(descriptor, data)

        def synced(descriptor: int) -> None:
            if self._is_last():
                self._die()
            sync(descriptor)

        os.write, os.fsync = torn, synced  # type: ignore[assignment]
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in self._EVENTS and str(arguments[0]).startswith(self._folder) and self._is_last():
            self._die()

    def _is_last(self) -> bool:
        self.count += 1
        return self.count == self._last

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


# --- what lies on the disk --------------------------------------------------------------------


def content(folder: Path) -> dict[str, bytes]:
    """What must be the unbroken run's, by file: all that does not tell of time."""
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", "DONE", "config.yaml", "identity.json")
    }
    held = {name: data for name, data in files.items() if not name.startswith("checkpoints/")}
    # The newest one's weights and moments; its manifest has the time that the steps took.
    newest = max(name.split("/")[1] for name in files if name.startswith("checkpoints/step"))
    parts = f"checkpoints/{newest}/part-"
    held |= {name: data for name, data in files.items() if name.startswith(parts)}
    record = json.loads(held["record.json"])
    del record["training"], record["config_hash"]
    held["record.json"] = json.dumps(record, sort_keys=True).encode()
    logged = [json.loads(line) for line in held["private/metrics.jsonl"].splitlines()]
    plain = [{key: value for key, value in line.items() if key != "seconds"} for line in logged]
    held["private/metrics.jsonl"] = json.dumps(plain).encode()
    # The card has hours and the run's own hash in it.
    del held["model/README.md"]
    return held


def differing(left: dict[str, bytes], right: dict[str, bytes]) -> dict[str, int]:
    """How many bits differ, by file."""
    found = {}
    for name in sorted(left.keys() | right.keys()):
        one, other = left.get(name), right.get(name)
        if one is None or other is None or len(one) != len(other):
            found[name] = -1
        elif one != other:
            found[name] = sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))
    return found


def leftovers(folder: Path) -> list[str]:
    """Files that killed processes were writing."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob(".*")]
    checkpoints = len(list((folder / "checkpoints").glob("step-*")))
    return [name for name in names if name != ".lock"] + ["a checkpoint"] * max(0, checkpoints - 2)


class Watched:
    """A run's ledger from kill to kill, beside what else lies in the folder."""

    def __init__(self, folder: Path, steps: int, private: bool) -> None:
        self._folder, self._steps, self._private = folder, steps, private
        self._lines: list[bytes] = []

    def taken(self) -> int:
        """Steps that anything but the ledger has seen."""
        folder = self._folder
        found = [int(path.name[5:]) for path in folder.glob("checkpoints/step-*")]
        log = folder / "private/metrics.jsonl"
        if log.exists():
            data = log.read_bytes()
            lines = data[: data.rfind(b"\n") + 1].splitlines()
            found += [json.loads(line)["step"] + 1 for line in lines[-1:]]
        if any((folder / name).exists() for name in ("record.json", "DONE", "model")):
            found.append(self._steps)
        return max(found, default=0)

    def look(self) -> tuple[int, int]:
        """Steps that are counted, and how many are missing."""
        if not self._private:
            return self.taken(), 0
        file = self._folder / "ledger.jsonl"
        data = file.read_bytes() if file.exists() else b""
        lines = data[: data.rfind(b"\n") + 1].splitlines()[1:]
        kept = sum(a == b for a, b in zip(self._lines, lines, strict=False))
        lost = len(self._lines) - kept
        self._lines = lines
        return len(lines), max(lost, self.taken() - len(lines), 0)


def stage(folder: Path) -> str:
    """How far the run is, by what lies there."""
    told = {"DONE": "done", "generations": "scoring", "record.json": "decoding", "model": "saving"}
    for name, said in told.items():
        if (folder / name).exists():
            return said
    return "training" if any(folder.glob("private/metrics.jsonl")) else "preparing"


# --- one run ----------------------------------------------------------------------------------


@functools.cache
def _composed(kind: str) -> dict[str, Any]:
    raw: dict[str, Any] = compose([*_SMALL, *KINDS[kind]])
    return raw


@dataclass(frozen=True)
class Unbroken:
    """A run that was not killed.

    Attributes:
        files: see `content`.
        seconds: that it took.
        operations: on its files.
    """

    files: dict[str, bytes]
    seconds: float
    operations: int


class Torture:
    """Runs of all kinds, killed again and again.

    Args:
        folder: where they lie while they run.
        seed: of the moments.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self._folder, self._seed = folder, seed
        self._unbroken: dict[str, Unbroken] = {}

    def run(self, number: int, kind: str, most: int = MOST_KILLS) -> Result:
        """Kill and continue one run until it is complete.

        Args:
            number: decides the moments.
            kind: of `KINDS`.
            most: how many kills.
        """
        unbroken = self.unbroken(kind)
        draw = random.Random(f"{self._seed} {number}")
        result = Result(number, kind)
        raw = self._raw(kind, f"run-{number}")
        folder = Path(raw["runs_dir"], raw["name"])
        shutil.rmtree(folder, ignore_errors=True)
        private = raw["clip"]["plan"] != "none"
        watched = Watched(folder, int(raw["optim"]["steps"]), private)
        for _ in range(draw.randint(min(3, most), most)):
            killed = self._killed(raw, draw, unbroken, result)
            if killed is None:
                break
            steps, under = watched.look()
            result.under += under
            result.kills.append(Kill(*killed, steps, stage(folder)))
        if not result.refused:
            self._finished(raw, result)
        result.under += watched.look()[1]
        if not result.refused:
            result.differing = differing(unbroken.files, content(folder))
            if runs.damages(folder):
                result.differing["DONE"] = -1
        result.leftovers = leftovers(folder)
        if result.fine:
            shutil.rmtree(folder)
        return result

    def unbroken(self, kind: str) -> Unbroken:
        """The run that the others are compared with; made once."""
        if kind not in self._unbroken:
            with Forked(_nothing) as process:  # the first one of all waits for the server
                process.finish(_SECONDS)
            raw = self._raw(kind, "unbroken")
            folder = Path(raw["runs_dir"], raw["name"])
            shutil.rmtree(folder, ignore_errors=True)
            began = time.monotonic()
            with Forked(_counted, raw) as process:
                done = process.finish(_SECONDS)
            assert done.returncode == 0, done.stderr
            seconds = time.monotonic() - began
            count = int(done.stdout.split()[-1])
            self._unbroken[kind] = Unbroken(content(folder), seconds, count)
            shutil.rmtree(folder)
        return self._unbroken[kind]

    def _raw(self, kind: str, name: str) -> dict[str, Any]:
        return {**_composed(kind), "runs_dir": str(self._folder / "runs"), "name": name}

    def _killed(
        self, raw: dict[str, Any], draw: random.Random, unbroken: Unbroken, result: Result
    ) -> tuple[str, float] | None:
        """One life that is to be killed; None if it came to its end before."""
        by = draw.choice(("clock", "operation"))
        # Later lives are shorter: most of the moments shall come before the end.
        at = draw.random() * (unbroken.seconds if by == "clock" else unbroken.operations)
        with Forked(live, raw, None if by == "clock" else 1 + int(at)) as process:
            if by == "clock":
                deadline = time.monotonic() + at
                while process.status is None and time.monotonic() < deadline:
                    time.sleep(0.002)
                process.kill()
            done = process.finish(_SECONDS)
        if done.returncode == -signal.SIGKILL:
            return by, round(at, 4)
        if done.returncode != 0:
            result.refused.append(done.stderr[-2000:])
        return None

    def _finished(self, raw: dict[str, Any], result: Result) -> None:
        with Forked(live, raw, None) as process:
            done = process.finish(_SECONDS)
        if done.returncode != 0:
            result.refused.append(done.stderr[-2000:])


def _nothing() -> None:
    """A process that has begun."""


def _counted(raw: dict[str, Any]) -> None:
    """A whole life that tells how many operations it had."""
    counts: list[Operations] = []
    watch = Operations.watch

    def noted(self: Operations) -> None:
        counts.append(self)
        watch(self)

    Operations.watch = noted  # type: ignore[method-assign]
    live(raw, None)
    print(counts[0].count)


# --- many runs --------------------------------------------------------------------------------


def read_journal(file: Path) -> list[Result]:
    """The runs that were finished; a line that a kill tore is done again."""
    lines = file.read_text().split("\n") if file.exists() else []
    found = []
    for line in lines[:-1]:
        item = json.loads(line)
        found.append(Result(**{**item, "kills": [Kill(**kill) for kill in item["kills"]]}))
    return found


def torture(folder: Path, kills: int, seed: int) -> Iterator[Result]:
    """Results until so many kills were made, those of the journal first."""
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / f"journal-{seed}.jsonl"
    results = read_journal(journal)
    yield from results
    made, number = sum(len(result.kills) for result in results), len(results)
    runs_of = Torture(folder, seed)
    names = list(KINDS)
    with journal.open("a") as file:
        file.truncate(sum(len(json.dumps(asdict(r))) + 1 for r in results))
        while made < kills:
            result = runs_of.run(number, names[number % len(names)])
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()
            made, number = made + len(result.kills), number + 1
            yield result


def summary(results: Sequence[Result]) -> str:
    """A Markdown table, by kind of run."""
    columns = "runs|kills|by the clock|at an operation|runs that differ|bits|counted too few"
    lines = [f"| kind | {' | '.join(columns.split('|'))} | leftovers | refused |"]
    lines.append("|---" * 10 + "|")
    kinds = list(dict.fromkeys(result.kind for result in results))
    for kind in [*kinds, None]:
        some = [result for result in results if kind in (None, result.kind)]
        ends = Counter(kill.by for result in some for kill in result.kills)
        bits = sum(abs(bits) for result in some for bits in result.differing.values())
        cells = [
            kind or "**all**",
            *(len(some), ends.total(), ends["clock"], ends["operation"]),
            *(sum(bool(result.differing) for result in some), bits),
            sum(result.under for result in some),
            sum(len(result.leftovers) for result in some),
            sum(len(result.refused) for result in some),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    stages = Counter(kill.stage for result in results for kill in result.kills)
    told = ", ".join(f"{name} {count}" for name, count in stages.most_common())
    return "\n".join([*lines, "", f"How far the run was when it was killed: {told}."])


def main(arguments: Sequence[str]) -> int:
    """The command; 1 if anything differs, is lost, is left or was refused."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("build/torture"))
    parser.add_argument("--out", type=Path, help="also write the table there")
    given = parser.parse_args(arguments)
    results = []
    for result in torture(given.folder.absolute(), given.kills, given.seed):
        results.append(result)
        killed = sum(len(one.kills) for one in results)
        print(f"{killed} of {given.kills} kills; {'fine' if result.fine else result}", flush=True)
    table = summary(results)
    print(f"\n{table}")
    if given.out:
        given.out.write_text(table + "\n")
    return 0 if all(result.fine for result in results) else 1


if __name__ == "__main__":
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ[name] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # By its own name: what is pickled for the forked processes must be found there.
    from tests import torture as itself

    raise SystemExit(itself.main(sys.argv[1:]))
