"""Runs that are killed with SIGKILL at random moments end like unbroken ones: 20 lives.

``make torture`` does the same a thousand times, and with all kinds of runs.
"""

from pathlib import Path

from tests.torture import Result, Torture, Watched

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
    assert {by for result in results for by in result.kills} == {"clock", "operation"}


def test_a_ledger_that_lost_a_line_between_two_kills_is_noticed(tmp_path: Path) -> None:
    watched = Watched(tmp_path, steps=4, private=True)
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text('{"header"}\n{"step":0}\n{"step":1}\n')
    assert watched.look() == (2, 0)
    ledger.write_text('{"header"}\n{"step":0}\n{"st')
    assert watched.look() == (1, 1)
    (tmp_path / "model").mkdir()
    assert watched.look() == (1, 3)
