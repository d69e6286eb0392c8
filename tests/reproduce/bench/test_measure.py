"""Rounds are interleaved, and summarised within each round."""

import pytest

from dpft.reproduce.bench.documents import summarise
from dpft.reproduce.bench.measure import (
    PRECISION,
    BenchError,
    Spread,
    largest_batches,
    measure,
    search,
)

from .fakes import REFUSED, Worker, result, settings, silent


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
    assert worker.names == ["none", "bk", "none", "opacus"]
    assert worker.steps == ["none", "bk"] * 2 + ["none"] + ["none", "opacus"] * 2 + ["none"]
    assert [row["variant"] for row in rows] == [
        *("bk", "none", "opacus (untied)", "none (untied)"),
    ]
    assert rows[0]["result"]["beside"] == [1.0] * 3


def test_what_fails_is_a_result():
    rows = measure(settings(rounds=2), Worker({"bk": REFUSED}), silent)
    assert [row["result"] for row in rows if row["variant"] == "bk"] == [REFUSED] * 2


def test_nothing_is_measured_against_non_private_training_that_failed():
    with pytest.raises(BenchError, match="not this one"):
        measure(settings(), Worker({"none": REFUSED}), silent)


@pytest.mark.parametrize("largest", [0, 1, 3, 4, 37, 63, 64, 1000, 5000])
@pytest.mark.parametrize("start", [1, 4, 100])
def test_the_search_ends_at_the_largest(largest, start):
    probes = []

    def fits(batch):
        probes.append(batch)
        return batch <= largest

    low, high = search(fits, start)
    assert low <= largest < high
    assert high - low <= max(1, low // PRECISION)
    assert len(probes) == len(set(probes)) < 30
    assert 0 not in probes


def test_each_variant_is_searched():
    largest = {"none": 20, "bk": 10}

    def probe(job):
        fits = job["batch"] <= largest[job["name"]]
        return result(2.0) if fits else {"status": "oom", "message": "CUDA out of memory"}

    made = settings(batch=4, device="cuda", peers="opacus")
    worker = Worker({"none": probe, "bk": probe, "opacus": REFUSED})
    none, bk, _, peer = largest_batches(made, worker.run, silent)
    assert {job["kind"] for job in worker.jobs} == {"fits"}
    assert (none.batch, none.too_large, none.examples_per_second) == (20, 21, 10.0)
    assert (bk.batch, bk.too_large) == (10, 11)
    assert (peer.batch, peer.message) == (None, REFUSED["message"])


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
    assert (bk.rounds, bk.baseline, bk.message) == (3, "none", None)


def test_a_step_is_divided_by_the_two_around_it():
    """A machine that becomes slower in the middle of a round changes no ratio."""
    bk = result() | {"seconds": [1.5, 3.0, 6.0], "beside": [1.0, 1.0, 3.0, 5.0]}
    rows = [row(0, "none", result(9.0)), row(0, "bk", bk)]
    assert summarise(settings(), rows)[1].time_ratio == Spread(1.5, 1.5, 1.5)


def test_failures_are_kept_with_their_message():
    rows = [
        *(row(0, "none", result()), row(0, "bk", REFUSED)),
        *(row(1, "none", {"status": "died", "message": "signal 9"}), row(1, "bk", result())),
        *(row(2, "none", result()), row(2, "bk", result(2.0))),
    ]
    none, bk = summarise(settings(), rows)
    assert bk.rounds == 1
    assert bk.message == REFUSED["message"]
    assert bk.time_ratio == Spread(2.0, 2.0, 2.0)
    assert (none.rounds, none.message) == (2, "signal 9")
