"""Whole sweeps, by the command as people type it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpft.cli import sweep
from dpft.cli.app import app
from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.runs import read_ledger, read_record
from dpft.sweep.folder import Failure

# Many: a test that is kept waiting by others must not find the sweep at its end.
STEPS = 24
SMALL = [
    *("task=sst2", "task.source=sample", "task.limit_train=32", "task.limit_eval=4"),
    *("model=random-bert", "optim.batch_size=8", f"optim.steps={STEPS}", "checkpoint_every=3"),
    *("threads=1", "privacy.noise_seed=1"),
]


def command(*words):
    return [sys.executable, "-m", "dpft.cli.app", "sweep", *words]


def start(cwd, *words):
    """The sweep in a session of its own; nothing of it reaches this process.

    What a shell starts in the background ignores Ctrl-C, and so does what that starts: not this.
    """
    heeded = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    return subprocess.Popen(
        [sys.executable, "-c", f"{heeded}os.execv(sys.argv[1], sys.argv[1:])", *command(*words)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def spent(cwd):
    """Steps in all ledgers together."""
    files = cwd.glob("runs/*/ledger.jsonl")
    return sum(max(0, file.read_bytes().count(b"\n") - 1) for file in files)


def wait_for(condition, process, seconds=100):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "the sweep does not get on"
        time.sleep(0.005)


def gone(pid):
    """Whether a process has ended, asked about or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def started(cwd, name, words, steps):
    """The sweep, started (again), when its runs together have taken so many steps; and its job."""
    process = start(cwd, *words, "--name", name)
    wait_for(lambda: spent(cwd) >= steps, process)
    locks = max(cwd.glob("runs/*/.lock"), key=lambda lock: lock.stat().st_mtime)
    return process, int(locks.read_text().split()[0])


def kill(process, job):
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    end = time.monotonic() + 10
    while not gone(job):  # which nobody killed: it follows the sweep
        assert time.monotonic() < end, "the job outlived the sweep"
        time.sleep(0.01)


def complete(cwd, name, words):
    """Let it end; what it said."""
    process = start(cwd, *words, "--name", name)
    output, said = process.communicate(timeout=400)
    assert process.returncode == 0, said
    return output


def check_complete(cwd, runs):
    folders = sorted(path.parent for path in cwd.glob("runs/*/DONE"))
    assert len(folders) == runs
    for folder in folders:
        record, ledger = read_record(folder), read_ledger(folder / "ledger.jsonl")
        assert [entry["step"] for entry in ledger.entries] == list(range(STEPS))
        assert ledger.entries[-1]["epsilon_rdp"] == record["privacy"]["epsilon"]["rdp"]
    return folders


@pytest.mark.slow
def test_a_sweep_killed_and_interrupted_ends_complete(tmp_path):
    """Killed in the first run, stopped by Ctrl-C in the second."""
    from dpft.training.run import run_experiment

    words = [*SMALL, "seed=1,2"]
    kill(*started(tmp_path, "two", words, STEPS // 3))

    process, job = started(tmp_path, "two", words, STEPS + STEPS // 2)
    process.send_signal(signal.SIGINT)
    output, said = process.communicate(timeout=30)
    assert process.returncode == 130, (output, said)
    assert "the same command continues" in said
    assert gone(job)
    assert "2 points: 1 done, 1 started" in output, said
    assert "Traceback" not in said

    finished = next(tmp_path.glob("runs/*/DONE"))
    before = finished.stat().st_mtime_ns
    output = complete(tmp_path, "two", words)
    assert "2 points: 2 done" in output
    assert finished.stat().st_mtime_ns == before  # what is finished is not started again
    assert "2 runs were trained with privacy on sst2" in output.replace("\n", " ")
    folders = check_complete(tmp_path, runs=2)
    settings = compose([*SMALL, "seed=1", f"runs_dir={tmp_path / 'unbroken'}"])
    unbroken = run_experiment(parse(settings)).path
    for name in ("ledger.jsonl", "model/model.safetensors"):
        assert (folders[0] / name).read_bytes() == (unbroken / name).read_bytes()


def invoke(*arguments):
    return CliRunner().invoke(app, ["sweep", *arguments])


def test_a_dry_run_shows_the_points_and_makes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("seed=1,2,2", "--dry-run", "--name", "two")
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
    result = invoke("seed=1,2", f"runs_dir={tmp_path}", "--name", "two")
    assert result.exit_code == 1
    assert result.stderr.count("[0/2 done] seed=1: failed") == 1
    assert "seed=1: no data" in result.stderr
    assert "the same command runs the others" in result.stderr
    assert "2 points: 0 done, 1 failed, 1 waiting" in result.stdout
