"""After a power cut at any moment no step is counted less than it was released, and runs go on.

The whole life of a real run is recorded: begun, killed amid a line of the ledger, continued to its
end. Then a disk loses what was not synced, in hundreds of ways (`disk`).
"""

import json
import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from dpft import runs
from dpft.config.errors import DpftError
from dpft.runs.folders import damages
from dpft.training.run import run_experiment
from tests.runs.disk import Content, Disk, Recorder
from tests.small_runs import Killed, settings

STEPS = 4
WORDS = ("clip=per_layer_adaptive", "audit.gradients=4", "optim=sgd", "optim.batch_size=4")
WORDS += (f"optim.steps={STEPS}", "checkpoint_every=1", "task.max_length=32")


@dataclass(frozen=True)
class Life:
    """What was recorded, and what the end was."""

    recorder: Recorder
    identity: dict[str, Any]
    whole: dict[str, bytes]
    known: frozenset[bytes]  # contents of files


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    root, write = tmp_path_factory.mktemp("disk"), os.write
    recorder, run = Recorder(root), settings(root / "runs", *WORDS)

    def dying(name: str, arguments: tuple[Any, ...]) -> None:
        """Die when half of a line of the ledger is written."""
        if name == "write" and b'"step":2,' in bytes(arguments[1]):
            write(arguments[0], arguments[1][: len(arguments[1]) // 2])
            recorder.look()
            raise Killed

    usual, recorder.before = recorder.before, dying
    with recorder.recording(), pytest.raises(Killed):
        run_experiment(run)
    recorder.before = usual
    with recorder.recording():
        path = run_experiment(run).path
    whole = {name: (path / name).read_bytes() for name in ("ledger.jsonl", "private/noise_key")}
    known = frozenset(event.data for event in recorder.events if isinstance(event, Content))
    return Life(recorder, run.identity(), whole, known)


def released(folder: Path) -> int:
    """Steps that a reader of this folder sees something of, whole or torn."""
    found = [0]
    for path in folder.glob("checkpoints/*step-*/*"):
        if path.stat().st_size and path.name != "manifest.json":
            found.append(int(path.parent.name.rpartition("-")[2]))
    for name in ("model", "generations"):
        if any(p.is_file() and p.stat().st_size for p in (folder / name).rglob("*")):
            found.append(STEPS)
    if (folder / "record.json").exists() or (folder / "DONE").exists():
        found.append(STEPS)
    return max(found)


def counted(folder: Path) -> int:
    """Steps in the ledger, as far as it can be read."""
    try:
        return runs.read_ledger(folder / "ledger.jsonl").steps_spent
    except runs.LedgerError:
        return 0


def problems(life: Life, folder: Path, moment: int) -> list[str]:
    """What is wrong with a folder that a power cut has left, and with what the code makes of it."""
    said = []
    if counted(folder) < released(folder):
        said.append(f"counted {counted(folder)} steps, released {released(folder)}")
    try:
        said += recovered(life, folder)
    except (DpftError, OSError, ValueError, KeyError, SafetensorError) as error:
        said.append(f"not continued: {type(error).__name__}: {error}")
    done = runs.is_finished(folder, runs.config_hash(life.identity))
    if moment >= len(life.recorder.events) and not done:
        said.append("it had said that it was finished")
    return said


def recovered(life: Life, folder: Path) -> list[str]:
    """The steps by which a command finds its run again, and what is wrong with what they find."""
    said = []
    with runs.RunDirectory.open(folder, life.identity, "") as run:
        if run.is_done:
            said += [f"finished, but {damage}" for damage in damages(run.path)]
        runs.check_ledger(run.path, STEPS)
        key = run.noise_key()
        header, *lines = life.whole["ledger.jsonl"].splitlines(keepends=True)
        if counted(folder) and key.hex() != life.whole["private/noise_key"].decode().strip():
            said.append("another key")
        ledger_header = json.loads(header)["header"]
        if not counted(folder):
            ledger_header = {**ledger_header, "key": runs.key_fingerprint(key)}
        with runs.Ledger(run.ledger, ledger_header) as ledger:
            spent = run.ledger.read_bytes().splitlines(keepends=True)[1:]
            if spent != lines[: len(spent)]:
                said.append("a line of the ledger that was never written")
            saved = runs.checkpoint.load(run)
            ledger.go_on(saved.step if saved else 0)
            if saved is not None:
                said += believed(life, saved.path)
                runs.load_private_state(run, "audit", saved.step)
        with runs.MetricsLog(run.metrics, saved.step if saved else 0):
            logged = [json.loads(line)["step"] for line in run.metrics.read_bytes().splitlines()]
        if logged != list(range(saved.step if saved else 0)):
            said.append(f"metrics of steps {logged} for a checkpoint of {saved and saved.step}")
        if run.record.exists():
            runs.read_record(run.path)
            said += believed(life, run.record)
        said += [f"left over: {path.name}" for path in run.path.rglob(".*.tmp")]
        said += [f"left over: {path.name}" for path in run.checkpoints.glob(".tmp-*")]
    return said


def believed(life: Life, path: Path) -> list[str]:
    """Files that were taken for whole and never were like that."""
    files = path.iterdir() if path.is_dir() else [path]
    return [f"torn: {file.name}" for file in files if file.read_bytes() not in life.known]


def test_after_a_power_cut_at_any_moment_nothing_is_miscounted_and_the_run_goes_on(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    disk, target, found, count = Disk(life.recorder), tmp_path / "left", {}, 250
    for number in range(count):
        draw = random.Random(number)
        # Each moment in turn, so that none is left out.
        moment = number % len(disk) + 1 if count > len(disk) else draw.randint(1, len(disk))
        disk.after(moment, draw, target)
        if said := problems(life, target / "runs/small", moment):
            found[number, moment] = said
        shutil.rmtree(target)
    assert found == {}
