"""Summaries of ledgers, which are published beside records."""

import hashlib
import json
from pathlib import Path

import pytest

from dpft.runs import Ledger, LedgerError, read_ledger
from dpft.runs.ledger import chained_lines
from dpft.runs.summary import summary

HEADER = {"mechanism": {"steps": 5}, "key": "cd34", "compute": {"threads": 1}}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, HEADER) as ledger:
        for step in range(5):
            ledger.spend(step, epsilon_rdp=0.5 * (step + 1), thresholds=[1.0, 2.0 - step / 4])
    return path


@pytest.fixture
def short(whole: Path, tmp_path: Path) -> Path:
    path = tmp_path / "copy" / "ledger.jsonl"
    path.parent.mkdir()
    path.write_bytes(summary(whole))
    return path


def entries_of(path: Path) -> list[dict[str, object]]:
    """Its lines behind the header, without their chains."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()[1:]]
    return [{name: value for name, value in line.items() if name != "chain"} for line in lines]


def test_a_summary_says_all_that_a_record_states(whole: Path, short: Path) -> None:
    said, full = read_ledger(short), read_ledger(whole)
    assert len(short.read_bytes().splitlines()) == 3
    assert said.header == full.header
    assert said.steps_spent == full.steps_spent == 5
    assert said.next_step == full.next_step == 5
    assert said.entries == full.entries[-1:]
    assert said.omitted == 4


def test_who_has_the_whole_ledger_can_tell_its_summary(whole: Path, short: Path) -> None:
    assert read_ledger(short).whole == hashlib.sha256(whole.read_bytes()).hexdigest()
    entries = read_ledger(whole).entries
    entries[1]["thresholds"] = [1.0, 1.76]
    whole.write_bytes(chained_lines(HEADER, entries))
    assert summary(whole) != short.read_bytes()


def test_what_a_kill_has_torn_is_no_part_of_it(whole: Path, short: Path) -> None:
    with whole.open("ab") as file:
        file.write(b'{"step":5,"epsi')
    assert summary(whole) == short.read_bytes()


def test_a_summary_of_a_summary_is_the_same(short: Path) -> None:
    assert summary(short) == short.read_bytes()


def test_a_ledger_that_is_shorter_is_copied_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for steps in range(3):
        with Ledger(path, HEADER) as ledger:
            for step in range(steps):
                ledger.spend(step)
        assert summary(path) == path.read_bytes()


def test_steps_that_were_released_twice_keep_their_lines(whole: Path) -> None:
    with Ledger(whole, {**HEADER, "compute": {"threads": 2}}) as ledger:
        ledger.go_on(1)
        ledger.spend(1)
    assert summary(whole) == whole.read_bytes()


def test_no_run_goes_on_from_a_summary(short: Path) -> None:
    with pytest.raises(LedgerError, match="is a summary, which leaves 4 steps out; expected the"):
        Ledger(short, HEADER)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"omitted": 0}, "got 0 steps that are left out"),
        ({"omitted": -1}, "got -1 steps"),
        ({"omitted": "4"}, "got '4' steps"),
        ({"omitted": True}, "got True steps"),
        ({"omitted": 3}, "line 3: got step 4, expected 3"),
        ({"sha256": None}, "got the digest None"),
        ({"sha256": "4f"}, "got the digest '4f'"),
    ],
)
def test_a_changed_summary_is_refused(short: Path, change: dict[str, object], why: str) -> None:
    left_out, last = entries_of(short)
    short.write_bytes(chained_lines(HEADER, [left_out | change, last]))
    with pytest.raises(LedgerError, match=why):
        read_ledger(short)


def test_a_summary_has_one_step_behind_what_it_leaves_out(short: Path) -> None:
    left_out, last = entries_of(short)
    for lines in ([left_out], [left_out, last, {"step": 5}]):
        short.write_bytes(chained_lines(HEADER, lines))
        with pytest.raises(LedgerError, match="expected the last step alone"):
            read_ledger(short)


def test_no_flipped_bit_of_a_summary_is_accepted(short: Path) -> None:
    whole = short.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        short.write_bytes(flipped)
        with pytest.raises(LedgerError):
            read_ledger(short)
