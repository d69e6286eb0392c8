"""A ledger that goes on elsewhere: whatever happens, each release has a line and its own draws."""

import os
import random
from pathlib import Path

import pytest

from dpft.runs import Ledger, LedgerError, LedgerMismatchError, read_ledger

KEY = b"k" * 32


def header(threads: int) -> dict[str, object]:
    return {"key": "cd34", "compute": {"device": "cpu", "threads": threads}}


@pytest.fixture
def spent(tmp_path: Path) -> Path:
    """Three steps on one thread."""
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, header(1)) as ledger:
        for step in range(3):
            ledger.spend(step, update=f"first-{step}")
    return path


@pytest.fixture
def moved(spent: Path) -> Path:
    """Two of them once more on two threads."""
    with Ledger(spent, header(2)) as ledger:
        ledger.go_on(1)
        for step in (1, 2):
            ledger.spend(step, update=f"second-{step}")
        assert ledger.go_on(3) == read_ledger(spent).stretch
    return spent


def test_repeated_steps_have_lines_of_their_own(moved: Path) -> None:
    contents = read_ledger(moved)
    assert (contents.steps_spent, contents.next_step, contents.stretch.repeated) == (5, 3, 2)
    assert [(entry["step"], "compute" in entry) for entry in contents.entries] == [
        *((0, False), (1, False), (2, False)),
        *((1, True), (2, False)),
    ]
    assert contents.entries[3]["compute"] == header(2)["compute"]


def test_nothing_is_spent_elsewhere_before_the_ledger_goes_on(spent: Path) -> None:
    before = spent.read_bytes()
    with Ledger(spent, header(2)) as ledger:
        for step in (0, 2, 3):
            with pytest.raises(LedgerMismatchError, match="threads: 1 -> 2"):
                ledger.spend(step, update="other")
        with pytest.raises(LedgerMismatchError, match=r"4 steps behind it but .* lost lines"):
            ledger.go_on(4)
        ledger.go_on(1)  # nor is anything on file yet
    assert spent.read_bytes() == before


def test_a_stretch_replays_its_own_steps_and_no_others(moved: Path) -> None:
    before = moved.read_bytes()
    with Ledger(moved, header(2)) as ledger:
        assert ledger.go_on(1) == read_ledger(moved).stretch
        for step in (1, 2):
            ledger.spend(step, update=f"second-{step}")
        with pytest.raises(LedgerMismatchError, match='update: "second-2" -> "first-2"'):
            ledger.spend(2, update="first-2")
        with pytest.raises(LedgerError, match="got step 0"):
            ledger.spend(0, update="first-0")
    assert moved.read_bytes() == before


@pytest.mark.parametrize("seed", range(6))
def test_no_life_of_a_run_releases_what_is_not_counted(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills, torn lines, lost checkpoints and moves at random; what was released is kept apart."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # thousands of them, of no power cut
    draw, path, steps = random.Random(seed), tmp_path / "ledger.jsonl", 12
    # By key and step what the sums follow from: two values would be one noise on two sums.
    released: dict[tuple[bytes, int], object] = {}
    checkpoints, threads = [(0, 0)], 1  # steps, and a digest of the weights
    for _ in range(60):
        if draw.random() < 0.4:
            threads = draw.choice([1, 2, 3])
        if draw.random() < 0.2:
            checkpoints = checkpoints[: draw.randint(1, len(checkpoints))]
        start, weights = checkpoints[-1]
        with Ledger(path, header(threads)) as ledger:
            key = ledger.go_on(start).key(KEY)
            for step in range(start, min(steps, start + draw.randint(0, 5))):
                ledger.spend(step)
                sums = (threads, weights)
                assert released.setdefault((key, step), sums) == sums
                weights = hash((weights, threads, key, step))
                if draw.random() < 0.4:
                    checkpoints.append((step + 1, weights))
            assert ledger.steps_spent == len(released)
        if draw.random() < 0.3:
            with path.open("ab") as file:  # the next line, torn
                file.write(b'{"chain":"9a","compute"'[: draw.randint(1, 22)])
        assert read_ledger(path).steps_spent == len(released)
