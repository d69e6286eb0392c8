"""Noise epochs in the ledger: whatever happens, each release has a line, and no line goes."""

import os
import random
from pathlib import Path

import pytest

from dpft.runs import (
    Ledger,
    LedgerError,
    LedgerMismatchError,
    MetricsLog,
    check_ledger,
    forget_steps,
    read_ledger,
)
from dpft.runs.ledger import chained_lines

HEADER = {"key": "cd34", "compute": {"device": "cpu", "threads": 1}}


def elsewhere(threads: int) -> dict[str, object]:
    return {**HEADER, "compute": {"device": "cpu", "threads": threads}}


@pytest.fixture
def spent(tmp_path: Path) -> Path:
    """Three steps on one thread."""
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, HEADER) as ledger:
        for step in range(3):
            ledger.spend(step, update=f"first-{step}")
    return path


@pytest.fixture
def moved(spent: Path) -> Path:
    """Gone on from the first step on two threads, so that two of the three count again."""
    with Ledger(spent, elsewhere(2)) as ledger:
        ledger.begin_epoch(1, charged=2)
        for step in (1, 2):
            ledger.spend(step, update=f"second-{step}")
    return spent


def test_steps_of_all_epochs_are_counted(moved: Path) -> None:
    contents = read_ledger(moved)
    assert (contents.steps_spent, contents.next_step, contents.repeated) == (5, 3, 2)
    assert [entry["update"] for entry in contents.entries] == [
        *("first-0", "first-1", "first-2"),
        *("second-1", "second-2"),
    ]
    (epoch,) = contents.further
    assert (epoch.number, epoch.start, epoch.compute["threads"]) == (1, 1, 2)
    with Ledger(moved, elsewhere(2)) as ledger:
        assert (ledger.steps_spent, ledger.next_step, ledger.repeated) == (5, 3, 2)
        ledger.spend(3, update="second-3")
    assert read_ledger(moved).steps_spent == 6


def test_nothing_is_spent_elsewhere_before_an_epoch_has_begun(spent: Path) -> None:
    before = spent.read_bytes()
    with Ledger(spent, elsewhere(2)) as ledger:
        assert ledger.changes == ["threads: 1 -> 2"]
        for step in (0, 2, 3):
            with pytest.raises(LedgerMismatchError, match="threads: 1 -> 2"):
                ledger.spend(step, update="other")
    assert spent.read_bytes() == before


def test_where_nothing_changed_steps_are_replays(spent: Path, moved: Path) -> None:
    with Ledger(moved, elsewhere(2)) as ledger:
        assert [ledger.repeats(step) for step in (1, 2, 3)] == [None, None, None]
        # The epoch's checkpoint is gone: what is behind an earlier one was not computed here.
        assert ledger.repeats(0) == 3
        with pytest.raises(LedgerError, match="expected the same number, and an epoch only where"):
            ledger.begin_epoch(2, charged=1)


def test_an_epoch_replays_its_own_steps_and_no_others(moved: Path) -> None:
    before = moved.read_bytes()
    with Ledger(moved, elsewhere(2)) as ledger:
        for step in (1, 2):
            ledger.spend(step, update=f"second-{step}")
        with pytest.raises(LedgerMismatchError, match='update: "second-2" -> "first-2"'):
            ledger.spend(2, update="first-2")
        with pytest.raises(LedgerError, match="got step 0"):
            ledger.spend(0, update="first-0")
    assert moved.read_bytes() == before


@pytest.mark.parametrize("charged", [0, 1, 3])
def test_an_epoch_that_is_not_accounted_for_does_not_begin(spent: Path, charged: int) -> None:
    before = spent.read_bytes()
    with Ledger(spent, elsewhere(2)) as ledger:
        with pytest.raises(LedgerError, match=f"with {charged} repeated steps .* repeats 2"):
            ledger.begin_epoch(1, charged=charged)
        for step in (4, -1):
            with pytest.raises(LedgerError, match="resume from the latest checkpoint"):
                ledger.begin_epoch(step, charged=3 - step)
    assert spent.read_bytes() == before


def test_an_epoch_torn_at_any_byte_has_not_begun(spent: Path) -> None:
    before = spent.read_bytes()
    with Ledger(spent, elsewhere(2)) as ledger:
        ledger.begin_epoch(1, charged=2, epsilon_rdp=0.5)
    whole = spent.read_bytes()
    for kept in range(len(before), len(whole)):
        spent.write_bytes(whole[:kept])
        assert read_ledger(spent).further == []
        with Ledger(spent, elsewhere(2)) as ledger:
            assert ledger.changes
            assert ledger.repeats(1) == 2
        assert spent.read_bytes() == before


def test_an_epoch_of_no_steps_goes_on_or_is_followed_by_another(spent: Path) -> None:
    """A kill behind the line of the epoch, before its first step."""
    with Ledger(spent, elsewhere(2)) as ledger:
        ledger.begin_epoch(1, charged=2)
    begun = spent.read_bytes()
    with Ledger(spent, elsewhere(2)) as ledger:
        assert (ledger.steps_spent, ledger.next_step, ledger.repeats(1)) == (3, 1, None)
        ledger.spend(1, update="second-1")
    assert read_ledger(spent).steps_spent == 4
    spent.write_bytes(begun)
    with Ledger(spent, elsewhere(4)) as ledger:
        assert ledger.repeats(1) == 0
        assert ledger.repeats(0) == 1
        ledger.begin_epoch(0, charged=1)
        for step in range(3):
            ledger.spend(step, update=f"third-{step}")
        assert (ledger.steps_spent, ledger.repeated) == (6, 3)


def test_what_differs_beside_the_compute_is_refused_as_ever(moved: Path) -> None:
    """And the latest epoch's compute is what counts."""
    Ledger(moved, elsewhere(2)).close()
    with pytest.raises(LedgerMismatchError) as told:
        Ledger(moved, {**elsewhere(1), "key": "other"})
    assert 'key: "cd34" -> "other"' in str(told.value)
    assert "compute.threads: 2 -> 1" in str(told.value)
    with pytest.raises(LedgerMismatchError, match=r"compute.device: .*\(absent\)"):
        Ledger(moved, {"key": "cd34"})


def damages():
    """Lines of a ledger of two epochs, and what is wrong with them."""

    def step(number):
        return {"step": number}

    def own(number):
        return {"epoch": 1, "step": number}

    def epoch(**said):
        return {"epoch": 1, "from": 1, "repeated": 1, "compute": {"threads": 2}} | said

    first, whole = [step(0), step(1)], epoch()
    yield "whole", [*first, whole, own(1), own(2)], None
    yield "its line is lost", [*first, own(1), own(2)], "got step 1, expected 2"
    free = epoch(**{"from": 2, "repeated": 0})
    yield "free", [*first, free, own(2)], None
    yield "a free one's line is lost", [*first, own(2)], "a step of epoch 1, expected 0"
    yield "its steps lost their mark", [*first, free, step(2)], "a step of epoch 0, expected 1"
    yield "its first step is lost", [*first, whole, own(2)], "got step 2, expected 1"
    yield "a step before it is lost", [step(0), whole, own(1)], "with 0 repeated steps"
    yield "it repeats less", [*first, epoch(repeated=0)], "with 1 repeated steps"
    yield "it repeats more", [*first, epoch(repeated=2)], "with 1 repeated steps"
    yield "from ahead", [*first, epoch(**{"from": 3})], "expected 0 to 2"
    yield "from nowhere", [*first, epoch(**{"from": "1"})], "expected 0 to 2"
    yield "a number is left out", [*first, epoch(epoch=2)], "expected noise epoch 1"
    yield "it is there twice", [*first, whole, whole], "expected noise epoch 2"
    before = epoch(**{"from": 0, "repeated": 0})
    yield "before any step", [before], "expected noise epoch 1"


@pytest.mark.parametrize(("lines", "said"), [case[1:] for case in damages()], ids=range(14))
def test_a_ledger_that_lost_or_changed_a_line_is_refused(tmp_path, lines, said) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(chained_lines(HEADER, lines))
    if said is None:
        assert read_ledger(path).steps_spent == sum("step" in line for line in lines)
        return
    with pytest.raises(LedgerError, match=said):
        read_ledger(path)


@pytest.mark.parametrize("seed", range(20))
def test_no_life_of_a_run_releases_what_is_not_counted(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills, torn lines, lost checkpoints and moves at random; what was released is kept apart."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # thousands of them, of no power cut
    draw, path, steps = random.Random(seed), tmp_path / "ledger.jsonl", 12
    released: set[tuple[int, int]] = set()  # epoch and step: a replay is no new release
    keys: dict[tuple[str, ...], int] = {}
    checkpoints, threads = [0], 1
    for _ in range(60):
        if draw.random() < 0.4:
            threads = draw.choice([1, 2, 3])
        if draw.random() < 0.2:
            checkpoints = checkpoints[: draw.randint(1, len(checkpoints))]
        start = checkpoints[-1]
        with Ledger(path, elsewhere(threads)) as ledger:
            repeated = ledger.repeats(start)
            if repeated is not None:
                with pytest.raises(LedgerMismatchError if ledger.changes else LedgerError):
                    ledger.spend(start)
                ledger.begin_epoch(start, charged=repeated)
            epoch = len(ledger.further)
            statements = tuple(one.statement for one in ledger.further)
            assert keys.setdefault(statements, epoch) == epoch
            for step in range(start, min(steps, start + draw.randint(0, 5))):
                ledger.spend(step)
                released.add((epoch, step))
                if draw.random() < 0.4:
                    checkpoints.append(step + 1)
            counted = ledger.steps_spent
            assert counted == len(released)
            if ledger.next_step == steps:  # all taken by the weights in hand
                assert counted == steps + ledger.repeated
        if draw.random() < 0.3:
            with path.open("ab") as file:  # the next line, torn
                file.write(b'{"epoch":9,"from"'[: draw.randint(1, 17)])
        assert read_ledger(path).steps_spent == len(released)


def test_no_two_epochs_have_one_statement(moved: Path) -> None:
    """Keys follow from statements: where, from which step, and which epoch it is."""
    with Ledger(moved, elsewhere(1)) as ledger:
        ledger.begin_epoch(1, charged=2)
        ledger.spend(1)
    with Ledger(moved, elsewhere(2)) as ledger:
        ledger.begin_epoch(1, charged=1)
        said = [epoch.statement for epoch in ledger.further]
    assert len(set(said)) == 3
    assert said == [epoch.statement for epoch in read_ledger(moved).further]


def test_what_tells_of_repeated_steps_is_dropped_and_a_lost_line_still_found(spent: Path) -> None:
    """What lies beside the ledger must fit the latest epoch, not one that came further."""
    folder = spent.parent
    (folder / "private").mkdir()
    for name in ("metrics.jsonl", "norms.jsonl"):
        with MetricsLog(folder / "private" / name) as log:
            for step in range(3):
                log.append(step)
    check_ledger(folder, planned=5)
    forget_steps(folder, 1)
    with Ledger(spent, elsewhere(2)) as ledger:
        ledger.begin_epoch(1, charged=2)
        check_ledger(folder, planned=5)
        with MetricsLog(folder / "private/metrics.jsonl", 1) as log:
            ledger.spend(1)
            log.append(1)
    check_ledger(folder, planned=5)
    lines = spent.read_bytes().splitlines(keepends=True)
    spent.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(LedgerMismatchError, match=r"holds 1 steps, but .* tells of 2"):
        check_ledger(folder, planned=5)
