"""Whole runs that several tests compare with, each made once."""

import functools
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.parallel.launched import SETTINGS, ranks
from tests.processes import command


@pytest.fixture(scope="session")
def complete(tmp_path_factory):
    """``complete(size, *settings)``: a run that came to its end on so many ranks.

    Its ``path`` is the run's folder, ``seconds`` how long it took, ``said`` the output of each
    rank. Nothing may be changed in the folder.
    """

    @functools.cache
    def made(size: int, *settings: str) -> SimpleNamespace:
        folder: Path = tmp_path_factory.mktemp("complete")
        words = [*SETTINGS, *settings, "name=run"]
        began = time.monotonic()
        processes = [command(words, folder)] if size == 1 else ranks(words, *[folder] * size)
        try:
            results = [process.finish() for process in processes]
        finally:
            for process in processes:
                process.__exit__()
        assert [result.returncode for result in results] == [0] * size, results
        seconds = time.monotonic() - began
        said = [result.stdout for result in results]
        return SimpleNamespace(path=folder / "runs/run", seconds=seconds, said=said)

    return made
