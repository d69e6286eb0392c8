"""Kill runs with SIGKILL at random moments, continue them, and compare them with unbroken ones.

Each life of a run is a process forked from one that has imported everything. Half of the kills
come by the clock, half at a random operation on the run's files, so that the short moments in which
files are written are met too; a killed `os.write` leaves half of what it was to write. After each
kill the ledger is compared with what else was written, and in the end all files with the unbroken
run's.

    python -m tests.torture --kills 1000 --folder build/torture

Another ``--seed`` draws other moments.
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
from collections.abc import Sequence
from dataclasses import dataclass, field
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
        "e2e, ghost, LoRA": (*_E2E, "clip=ghost", "adapt=lora"),
        "sst2, bk": (*_CLASSES, "clip=bk"),
        "sst2, adaptive, seed": (*_CLASSES, "clip=per_layer_adaptive", SEEDED),
        "sst2, none": (*_CLASSES, "clip=none"),
        "users, adaptive": (*_USERS, "clip=per_layer_adaptive", "model=random-gpt2"),
        "audited, bk": (*_CLASSES, "clip=bk", "audit.gradients=4"),
    }
)
MOST_KILLS = 9  # of one run
_SECONDS = 300.0  # no life takes as long


@dataclass
class Result:
    """The outcome of one run."""

    kind: str  # of `KINDS`
    kills: list[str] = field(default_factory=list)  # by the clock or by an operation
    differing: list[str] = field(default_factory=list)  # files, from the unbroken run's
    under: int = 0  # steps that a ledger counted too few, or lines that it lost, after a kill
    leftovers: list[str] = field(default_factory=list)  # temporary files that the end found
    refused: list[str] = field(default_factory=list)  # what was printed by one that did not go on

    @property
    def fine(self) -> bool:
        return not (self.differing or self.under or self.leftovers or self.refused)


def live(raw: dict[str, Any], operations: int | None) -> None:
    """Live one life of a run; SIGKILL ends it at that many operations on its files, if ever."""
    from dpft.config.schema import parse
    from dpft.tasks.metrics import coco
    from dpft.training.run import run_experiment

    # Java takes a second and has no part in what is tested.
    coco.ptb_tokenize = lambda texts: [text.lower() for text in texts]  # type: ignore
    coco.meteor = lambda captions, grouped: len(captions) / (1 + len(grouped))  # type: ignore
    coco.java_version = lambda: "none"  # type: ignore
    # The secret keys of all runs are the same, and so are their noise and their batches.
    os.urandom = lambda count: bytes(range(count))
    counter = Operations(Path(raw["runs_dir"], raw["name"]), operations)
    counter.watch()
    run_experiment(parse(raw))
    print(counter.count)


class Operations:
    """Counts what a process does to the files of a run, and kills it amid the last one."""

    _EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")

    def __init__(self, folder: Path, last: int | None) -> None:
        self._folder, self._last = str(folder), last
        self.count = 0

    def watch(self) -> None:
        write, sync = os.write, os.fsync

        def torn(descriptor: int, data: bytes) -> int:
            if self._is_last():
                write(descriptor, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return write(descriptor, data)

        def synced(descriptor: int) -> None:
            self._audit("open", (self._folder,))
            sync(descriptor)

        os.write, os.fsync = torn, synced  # type: ignore[assignment]
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        ours = event in self._EVENTS and str(arguments[0]).startswith(self._folder)
        if ours and self._is_last():
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_last(self) -> bool:
        self.count += 1
        return self.count == self._last


def content(folder: Path) -> dict[str, bytes]:
    """Return what must equal the unbroken run's, by file: all that does not depend on time."""
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


def differing(left: dict[str, bytes], right: dict[str, bytes]) -> list[str]:
    """Return the files that differ."""
    return [
        name for name in sorted(left.keys() | right.keys()) if left.get(name) != right.get(name)
    ]


def leftovers(folder: Path) -> list[str]:
    """Return files that killed processes were writing."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob(".*")]
    checkpoints = len(list((folder / "checkpoints").glob("step-*")))
    return [name for name in names if name != ".lock"] + ["a checkpoint"] * max(0, checkpoints - 2)


class Watched:
    """A run's ledger from kill to kill, compared with what else is in the folder."""

    def __init__(self, folder: Path, steps: int, private: bool) -> None:
        self._folder, self._steps, self._private = folder, steps, private
        self._lines: list[bytes] = []

    def look(self) -> tuple[int, int]:
        """Return the steps that are counted, and how many are missing."""
        if not self._private:
            return 0, 0
        # Steps that anything but the ledger has seen.
        folder = self._folder
        found = [int(path.name[5:]) for path in folder.glob("checkpoints/step-*")]
        logged = _whole_lines(folder / "private/metrics.jsonl")
        found += [json.loads(line)["step"] + 1 for line in logged[-1:]]
        if any((folder / name).exists() for name in ("record.json", "DONE", "model")):
            found.append(self._steps)
        lines = _whole_lines(folder / "ledger.jsonl")[1:]
        kept = sum(a == b for a, b in zip(self._lines, lines, strict=False))
        lost = len(self._lines) - kept
        self._lines = lines
        return len(lines), max(lost, max(found, default=0) - len(lines), 0)


def _whole_lines(file: Path) -> list[bytes]:
    data = file.read_bytes() if file.exists() else b""
    return data[: data.rfind(b"\n") + 1].splitlines()


@functools.cache
def _composed(kind: str) -> dict[str, Any]:
    raw: dict[str, Any] = compose([*_SMALL, *KINDS[kind]])
    return raw


class Torture:
    """Runs of all kinds, killed again and again at moments that are drawn from a seed."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self._folder, self._seed = folder, seed
        self._unbroken: dict[str, tuple[dict[str, bytes], float, int]] = {}

    def run(self, number: int, kind: str) -> Result:
        """Kill and continue one run until it is complete; ``number`` decides the moments."""
        expected, seconds, operations = self.unbroken(kind)
        draw = random.Random(f"{self._seed} {number}")
        result = Result(kind)
        raw = self._raw(kind, f"run-{number}")
        folder = Path(raw["runs_dir"], raw["name"])
        shutil.rmtree(folder, ignore_errors=True)
        watched = Watched(folder, int(raw["optim"]["steps"]), raw["clip"]["plan"] != "none")
        for left in reversed(range(draw.randint(3, MOST_KILLS) + 1)):
            by = draw.choice(("clock", "operation")) if left else "end"
            at = draw.random() * (seconds if by == "clock" else operations)
            status, _, said = self._live(raw, by, at)
            result.under += watched.look()[1]
            if status != -signal.SIGKILL:
                result.refused += [said[-2000:]] if status else []
                break
            result.kills.append(by)
        if not result.refused:
            result.differing = differing(expected, content(folder))
            result.differing += ["DONE"] if runs.damages(folder) else []
        result.leftovers = leftovers(folder)
        if result.fine:
            shutil.rmtree(folder)
        return result

    def unbroken(self, kind: str) -> tuple[dict[str, bytes], float, int]:
        """Return a run that was not killed: its `content`, seconds and operations on its files."""
        if kind not in self._unbroken:
            with Forked(_nothing) as process:  # the first one of all waits for the server
                process.finish(_SECONDS)
            raw = self._raw(kind, "unbroken")
            folder = Path(raw["runs_dir"], raw["name"])
            shutil.rmtree(folder, ignore_errors=True)
            began = time.monotonic()
            status, printed, said = self._live(raw, "end", 0)
            assert status == 0, said
            seconds, count = time.monotonic() - began, int(printed.split()[-1])
            self._unbroken[kind] = content(folder), seconds, count
            shutil.rmtree(folder)
        return self._unbroken[kind]

    def _raw(self, kind: str, name: str) -> dict[str, Any]:
        return {**_composed(kind), "runs_dir": str(self._folder / "runs"), "name": name}

    def _live(self, raw: dict[str, Any], by: str, at: float) -> tuple[int, str, str]:
        """Live one life; return its exit status, output and errors."""
        with Forked(live, raw, 1 + int(at) if by == "operation" else None) as process:
            if by == "clock":
                deadline = time.monotonic() + at
                while process.status is None and time.monotonic() < deadline:
                    time.sleep(0.002)
                process.kill()
            done = process.finish(_SECONDS)
        return done.returncode, done.stdout, done.stderr


def _nothing() -> None:
    """A process that has begun."""


def main(arguments: Sequence[str]) -> int:
    """Kill runs of all kinds; return 1 if anything differs, is lost, is left or was refused."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("build/torture"))
    given = parser.parse_args(arguments)
    runs_of, names = Torture(given.folder.absolute(), given.seed), list(KINDS)
    kills: Counter[str] = Counter()
    number = failed = 0
    while kills.total() < given.kills:
        result = runs_of.run(number, names[number % len(names)])
        kills.update(result.kills)
        failed += not result.fine
        print(f"{dict(kills)} kills; {'fine' if result.fine else result}", flush=True)
        number += 1
    print(f"{failed} of {number} runs differ from unbroken ones")
    return 1 if failed else 0


if __name__ == "__main__":
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ[name] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # By its own name: what is pickled for the forked processes must be found there.
    from tests import torture as itself

    raise SystemExit(itself.main(sys.argv[1:]))
