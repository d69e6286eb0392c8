"""A run that is killed, anywhere and repeatedly, ends as if it had never been."""

import os
import random
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpft.runs import RunLockedError, read_ledger
from tests.processes import Forked
from tests.runs.toy import content, train


class Killed(BaseException):
    """Nothing may catch it, as nothing can catch SIGKILL."""


class Reaper:
    """Lets ``life`` operations on the disk happen, then the process is dead."""

    def __init__(self, patch: pytest.MonkeyPatch, life: float) -> None:
        self.life = life
        self.operations = 0
        for owner, name in (
            (os, "write"),
            (os, "urandom"),
            (shutil, "rmtree"),
            (Path, "rename"),
            (Path, "replace"),
            (Path, "mkdir"),
            (Path, "write_text"),
        ):
            patch.setattr(owner, name, self.mortal(getattr(owner, name), torn=name == "write"))
        truncate = os.ftruncate
        mortal = self.mortal(truncate)
        # Not amid the emptying of a lock file: unlike a dead process, this one would keep the lock.
        patch.setattr(os, "ftruncate", lambda f, n: mortal(f, n) if n else truncate(f, n))
        # torch gives each call a random name for its log, which is nothing on the disk.
        patch.setattr("torch.distributed.checkpoint.logger.uuid4", lambda: uuid.UUID(int=0))
        # A kill loses nothing that the kernel already has, so syncing only takes time here.
        patch.setattr(os, "fsync", self.mortal(lambda _: None))

    def mortal(self, operation: Callable[..., Any], torn: bool = False) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.operations += 1
            if self.operations == self.life and torn:
                operation(args[0], args[1][: len(args[1]) // 2])
            if self.operations >= self.life:
                raise Killed
            return operation(*args, **kwargs)

        return call


@pytest.fixture
def unbroken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, bytes]:
    train(tmp_path / "unbroken")
    return content(tmp_path / "unbroken")


def test_killed_at_any_disk_operation_the_run_ends_in_the_same_bytes(
    tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    life = 0
    finished = False
    while not finished:
        life += 1
        folder = tmp_path / f"killed-{life}"
        with pytest.MonkeyPatch.context() as patch:
            Reaper(patch, life)
            try:
                train(folder)
                finished = True
            except Killed:
                pass
        with pytest.MonkeyPatch.context() as patch:
            Reaper(patch, float("inf"))
            train(folder)
        assert content(folder) == unbroken, f"killed at operation {life}"
    assert life > 50


def test_killed_again_and_again_amid_resuming_it_still_ends_in_the_same_bytes(
    tmp_path: Path, unbroken: dict[str, bytes]
) -> None:
    draw = random.Random(0)
    for attempt in range(5):
        folder = tmp_path / f"killed-{attempt}"
        kills = 0
        while not (folder / "DONE").exists():
            with pytest.MonkeyPatch.context() as patch:
                Reaper(patch, draw.randint(10, 30))
                try:
                    train(folder)
                except Killed:
                    kills += 1
        assert kills >= 2
        assert content(folder) == unbroken


def child_steps(child: Forked, at_least: int) -> int:
    """Wait for so many steps; how many there were."""
    child.wait_for(lambda: child.said[0].count("\n") >= at_least)
    return child.said[0].count("\n")


def test_a_process_killed_with_sigkill_frees_the_lock_and_resumes_to_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "unbroken", steps=40, save_every=3)
    draw = random.Random(1)
    for _ in range(2):
        with Forked(train, tmp_path / "run", steps=40, save_every=3, pause=0.02) as child:
            steps = child_steps(child, 1)
            with pytest.raises(RunLockedError, match=f"process {child.pid}"):
                train(tmp_path / "run", steps=40, save_every=3)
            child_steps(child, steps + draw.randint(4, 8))
            child.kill()
            assert child.status == -9
        assert 0 < read_ledger(tmp_path / "run" / "ledger.jsonl").steps_spent < 40
    train(tmp_path / "run", steps=40, save_every=3)
    assert content(tmp_path / "run") == content(tmp_path / "unbroken")


def test_a_disk_that_refuses_stops_the_run_with_advice_and_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "unbroken", size=64)
    with Forked(train, tmp_path / "run", size=64, file_limit=30_000) as child:  # of 48 kB
        done = child.finish()
    errors = done.stderr
    assert done.returncode == 1
    assert "could not write checkpoint step-00000002" in errors
    assert "File too large" in errors
    assert "free some space and run the same command again" in errors
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    train(tmp_path / "run", size=64)
    assert content(tmp_path / "run") == content(tmp_path / "unbroken")
