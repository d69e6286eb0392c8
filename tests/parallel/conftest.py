"""Whole runs that several tests compare with, each made once; no process outlives its test."""

import functools
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.parallel.ranks import SETTINGS, ranks
from tests.processes import end_all


@pytest.fixture(autouse=True)
def _ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    end_all()


@pytest.fixture(scope="session")
def complete(tmp_path_factory):
    """``complete(size, *settings)``: a run that came to its end on so many ranks.

    Its ``path`` is the run's folder, ``seconds`` how long it took, ``said`` the output of each
    rank. Nothing may be changed in the folder.
    """

    @functools.cache
    def made(size: int, *settings: str) -> SimpleNamespace:
        folder: Path = tmp_path_factory.mktemp("complete")
        began = time.monotonic()
        processes = ranks([*SETTINGS, *settings, "name=run"], *[folder] * size)
        results = [process.finish() for process in processes]
        assert [result.returncode for result in results] == [0] * size, results
        seconds = time.monotonic() - began
        said = [result.stdout for result in results]
        return SimpleNamespace(path=folder / "runs/run", seconds=seconds, said=said)

    return made
