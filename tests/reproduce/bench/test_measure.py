"""Rounds are interleaved, and summarised within each round."""

import pytest

from dpft.reproduce.bench.documents import Spread, summarise
from dpft.reproduce.bench.measure import BenchError, measure
from tests.reproduce.bench.fakes import REFUSED, Worker, result, settings


def silent(what):
    pass


def test_rounds_are_interleaved():
    worker = Worker()
    made = settings(styles="bk,ghost", rounds=3)
    rows = measure(made, worker, silent)
    assert worker.names == [
        *("none", "bk", "ghost"),
        *("none", "ghost", "bk"),
        *("none", "bk", "ghost"),
    ]
    assert [row["round"] for row in rows] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert all("load" in row for row in rows)


def test_steps_alternate_with_those_of_non_private_training():
    worker = Worker()
    rows = measure(settings(steps=2, rounds=1, peers="opacus"), worker, silent)
    assert worker.names == ["none", "bk", "opacus"]
    assert worker.steps == ["none", "bk"] * 2 + ["none"] + ["none", "opacus"] * 2 + ["none"]
    assert [row["variant"] for row in rows] == ["bk", "opacus", "none"]
    assert rows[0]["result"]["baseline_seconds"] == [1.0] * 3


def test_what_fails_is_a_result():
    rows = measure(settings(rounds=2), Worker({"bk": REFUSED}), silent)
    assert [row["result"] for row in rows if row["variant"] == "bk"] == [REFUSED] * 2


def test_nothing_is_measured_against_non_private_training_that_failed():
    with pytest.raises(BenchError, match="not this one"):
        measure(settings(), Worker({"none": REFUSED}), silent)


def row(turn, variant, outcome):
    return {"round": turn, "variant": variant, "result": outcome}


def test_ratios_are_of_the_same_round():
    """A machine that is twice as slow in one round changes no ratio."""
    rows = [
        *(row(0, "none", result(1.0, 100)), row(0, "bk", result(1.5, 110))),
        *(row(1, "none", result(2.0, 100)), row(1, "bk", result(3.0, 120))),
        *(row(2, "none", result(1.0, 200)), row(2, "bk", result(1.2, 220))),
    ]
    none, bk = summarise(settings(), rows)
    assert none.time_ratio == Spread(1.0, 1.0, 1.0)
    assert bk.time_ratio == Spread(1.5, 1.2, 1.5)
    assert bk.memory_ratio == Spread(1.1, 1.1, 1.2)
    assert bk.seconds == Spread(1.5, 1.2, 3.0)
    assert (bk.rounds, bk.message) == (3, None)


def test_a_step_is_divided_by_the_two_around_it():
    """A machine that becomes slower in the middle of a round changes no ratio."""
    bk = result() | {"seconds": [1.5, 3.0, 6.0], "baseline_seconds": [1.0, 1.0, 3.0, 5.0]}
    rows = [row(0, "none", result(9.0)), row(0, "bk", bk)]
    assert summarise(settings(), rows)[1].time_ratio == Spread(1.5, 1.5, 1.5)


def test_failures_are_kept_with_their_message():
    rows = [
        *(row(0, "none", result()), row(0, "bk", REFUSED)),
        *(row(1, "none", result()), row(1, "bk", result(2.0))),
    ]
    bk = summarise(settings(), rows)[1]
    assert bk.rounds == 1
    assert bk.message == REFUSED["message"]
    assert bk.time_ratio == Spread(2.0, 2.0, 2.0)
