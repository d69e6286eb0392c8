from collections.abc import Iterator
from pathlib import Path

import pytest

from dpft.runs import RunDirectory

CONFIG = {"task": "e2e", "privacy": {"epsilon": 3, "delta": 1e-5}}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    with RunDirectory.open(tmp_path / "run", CONFIG, "task: e2e\n") as directory:
        yield directory
