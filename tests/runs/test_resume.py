"""A run that is killed, anywhere and repeatedly, ends as if it had never been."""

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
def unbroken(tmp_path: Path) -> dict[str, bytes]:
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
