"""Runs that are killed with SIGKILL at random moments end like unbroken ones: 20 lives.

``make torture`` does the same a thousand times, and with all kinds of runs.
"""

from pathlib import Path

import pytest

from tests import torture
from tests.torture import Kill, Result, Torture, Watched, differing, read_journal, summary

LIVES = 20


def test_runs_that_are_killed_again_and_again_end_like_unbroken_ones(tmp_path: Path) -> None:
    runs_of = Torture(tmp_path, seed=1)
    kinds = ["users, adaptive", "sst2, bk", "sst2, none"]
    results: list[Result] = []
    while sum(len(result.kills) for result in results) < LIVES:
        number = len(results)
        results.append(runs_of.run(number, kinds[number % len(kinds)]))
        assert number < LIVES, "kills come too late"
        assert results[-1].fine, results[-1]
    assert {kill.by for result in results for kill in result.kills} == {"clock", "operation"}


def test_a_ledger_that_lost_a_line_between_two_kills_is_noticed(tmp_path: Path) -> None:
    watched = Watched(tmp_path, steps=4, private=True)
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text('{"header"}\n{"step":0}\n{"step":1}\n')
    assert watched.look() == (2, 0)
    ledger.write_text('{"header"}\n{"step":0}\n{"st')
    assert watched.look() == (1, 1)
    (tmp_path / "model").mkdir()
    assert watched.look() == (1, 3)


def test_differing_bits_are_counted() -> None:
    left = {"a": b"\x00\x01", "b": b"same", "c": b""}
    assert differing(left, {"a": b"\x03\x01", "b": b"same", "d": b""}) == {"a": 2, "c": -1, "d": -1}


def test_the_journal_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def run(self: Torture, number: int, kind: str) -> Result:
        ran.append(number)
        return Result(number, kind, [Kill("clock", 0.5, 2, "training")] * 3)

    monkeypatch.setattr(Torture, "run", run)
    whole = list(torture.torture(tmp_path, kills=6, seed=3))
    journal = tmp_path / "journal-3.jsonl"
    assert read_journal(journal) == whole
    journal.write_text(journal.read_text() + '{"number": 2, "ki')
    assert len(list(torture.torture(tmp_path, kills=9, seed=3))) == 3
    assert ran == [0, 1, 2]
    assert "| **all** | 3 | 9 | 9 | 0 |" in summary(read_journal(journal))
