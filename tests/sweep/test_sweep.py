"""Whole sweeps, by the command as people type it."""

import os
import signal
import time
from pathlib import Path

import pytest

from dpft.cli import sweep
from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.runs import read_ledger, read_record
from dpft.sweep.sweep_folder import Failure
from dpft.training.run import run_experiment
from tests.processes import command, invoke

# Many: a test that is kept waiting by others must not find the sweep at its end.
STEPS = 24
SMALL = [
    *("task=sst2", "task.source=sample", "task.limit_train=32", "task.limit_eval=4"),
    *("model=random-bert", "optim.batch_size=8", f"optim.steps={STEPS}", "checkpoint_every=3"),
    *("threads=1", "privacy.noise_seed=1"),
]


def start(cwd):
    return command(["sweep", *SMALL, "seed=1,2", "--name", "two"], cwd)


def job_of(sweep, cwd, steps):
    """The process that trains, once the runs together have taken so many steps."""

    def taken():
        files = cwd.glob("runs/*/ledger.jsonl")
        return sum(max(0, file.read_bytes().count(b"\n") - 1) for file in files)

    sweep.wait_for(lambda: taken() >= steps)
    lock = max(cwd.glob("runs/*/.lock"), key=lambda lock: lock.stat().st_mtime)
    return int(lock.read_text().split()[0])


def follows(pid, seconds=10):
    """Whether a process that nobody killed ends with its sweep."""
    deadline = time.monotonic() + seconds
    stat = Path(f"/proc/{pid}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.slow
def test_a_sweep_killed_and_interrupted_ends_complete(tmp_path):
    """Killed in the first run, stopped by Ctrl-C in the second."""
    with start(tmp_path) as sweep:
        job = job_of(sweep, tmp_path, STEPS // 3)
        sweep.kill()
        assert follows(job)

    with start(tmp_path) as sweep:
        job = job_of(sweep, tmp_path, STEPS + STEPS // 2)
        os.kill(sweep.pid, signal.SIGINT)
        stopped = sweep.finish(60)
    assert stopped.returncode == 130, stopped
    assert "the same command continues" in stopped.stderr
    assert follows(job)
    assert "2 points: 1 done, 1 started" in stopped.stdout
    assert "Traceback" not in stopped.stderr

    finished = next(tmp_path.glob("runs/*/DONE"))
    before = finished.stat().st_mtime_ns
    with start(tmp_path) as sweep:
        ended = sweep.finish(400)
    assert ended.returncode == 0, ended
    output = ended.stdout
    assert "2 points: 2 done" in output
    assert finished.stat().st_mtime_ns == before  # what is finished is not started again
    assert "2 runs were trained with privacy on sst2" in output.replace("\n", " ")
    folders = sorted(path.parent for path in tmp_path.glob("runs/*/DONE"))
    assert len(folders) == 2
    for folder in folders:
        record, ledger = read_record(folder), read_ledger(folder / "ledger.jsonl")
        assert [entry["step"] for entry in ledger.entries] == list(range(STEPS))
        assert ledger.entries[-1]["epsilon_rdp"] == record["privacy"]["epsilon"]["rdp"]
    settings = compose([*SMALL, "seed=1", f"runs_dir={tmp_path / 'unbroken'}"])
    unbroken = run_experiment(parse(settings)).path
    for name in ("ledger.jsonl", "model/model.safetensors"):
        assert (folders[0] / name).read_bytes() == (unbroken / name).read_bytes()


def test_a_dry_run_shows_the_points_and_makes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("sweep", "seed=1,2,2", "--dry-run", "--name", "two")
    assert result.exit_code == 0, result.output
    assert "merged 1 points" in result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["seed=1", "seed=2"]
    assert lines[2] == "runs/sweeps/two: 2 points, 0 done"
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_printed_with_what_to_type_next(tmp_path, monkeypatch):
    def one_fails(parsed, lines, folder, look):
        look()
        folder.fail(folder.points()[0].digest, Failure(error="no data", diverged=False))
        look()
        return 0

    monkeypatch.setattr(sweep, "run_points", one_fails)
    result = invoke("sweep", "seed=1,2", f"runs_dir={tmp_path}", "--name", "two")
    assert result.exit_code == 1
    assert result.stderr.count("[0/2 done] seed=1: failed") == 1
    assert "seed=1: no data" in result.stderr
    assert "the same command runs the others" in result.stderr
    assert "2 points: 0 done, 1 failed, 1 waiting" in result.stdout
