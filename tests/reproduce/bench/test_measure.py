"""Rounds are interleaved, kept as they come, continued, and summarised within each round."""

import json

import pytest

from dpft.reproduce.bench import measure as module
from dpft.reproduce.bench.documents import Spread, summarise
from dpft.reproduce.bench.measure import (
    PRECISION,
    BenchError,
    ResultLog,
    largest_batches,
    measure,
    measurement_key,
    search,
)

from .fakes import FACTS, REFUSED, Worker, result, settings, silent


def test_rounds_are_interleaved(tmp_path):
    worker = Worker()
    made = settings(styles="bk,ghost", rounds=3)
    rows = measure(made, ResultLog(tmp_path / "x.jsonl", "k"), worker, silent)
    assert worker.names == [
        *("none", "bk", "ghost"),
        *("none", "ghost", "bk"),
        *("none", "bk", "ghost"),
    ]
    assert [row["round"] for row in rows] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert all("load" in row for row in rows)


def test_steps_alternate_with_those_of_non_private_training(tmp_path):
    worker = Worker()
    rows = measure(
        settings(steps=2, rounds=1, peers="opacus"), ResultLog(tmp_path / "x", "k"), worker, silent
    )
    assert worker.names == ["none", "bk", "none", "opacus"]
    assert worker.steps == ["none", "bk"] * 2 + ["none"] + ["none", "opacus"] * 2 + ["none"]
    assert [row["variant"] for row in rows] == [
        *("bk", "none", "opacus (untied)", "none (untied)"),
    ]
    assert rows[0]["result"]["beside"] == [1.0] * 3


def test_more_rounds_continue_fewer_and_a_finished_benchmark_is_not_measured_again(tmp_path):
    path = tmp_path / "deep" / "x.jsonl"
    first = measure(settings(rounds=1), ResultLog(path, "k"), Worker(), silent)
    for jobs in (4, 0):
        worker = Worker()
        rows = measure(settings(rounds=3), ResultLog(path, "k"), worker, silent)
        assert len(worker.jobs) == jobs
        assert [row["round"] for row in rows] == [0, 0, 1, 1, 2, 2]
        assert rows[:2] == first


def test_a_line_cut_off_by_a_kill_costs_one_measurement(tmp_path):
    path = tmp_path / "x.jsonl"
    made = settings(rounds=2)
    measure(made, ResultLog(path, "k"), Worker(), silent)
    path.write_text(path.read_text()[:-20])
    worker = Worker()
    measure(made, ResultLog(path, "k"), worker, silent)
    assert len(worker.jobs) == 2
    rows = map(json.loads, path.read_text().splitlines())
    assert [row["session"] for row in rows] == [1, 1, 1, 2, 2]


def test_other_settings_code_and_machines_do_not_mix(tmp_path):
    keys = {
        measurement_key(settings(), FACTS, "code"),
        measurement_key(settings(batch=2), FACTS, "code"),
        measurement_key(settings(styles="bk,ghost"), FACTS, "code"),
        measurement_key(settings(untied=True), FACTS, "code"),
        measurement_key(settings(), FACTS, "other code"),
        measurement_key(settings(), FACTS | {"device": "cuda"}, "code"),
        measurement_key(
            settings(), FACTS | {"environment": FACTS["environment"] | {"cpu": "other"}}, "code"
        ),
    }
    assert len(keys) == 7
    assert measurement_key(settings(rounds=9, out=tmp_path), FACTS, "code") in keys
    path = tmp_path / "x.jsonl"
    measure(settings(rounds=1), ResultLog(path, "a"), Worker(), silent)
    worker = Worker()
    measure(settings(rounds=1), ResultLog(path, "b"), worker, silent)
    assert len(worker.jobs) == 2
    assert len(path.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("answer", "tries"), [(REFUSED, 1), ({"status": "died", "message": "signal 9"}, 3)]
)
def test_what_refuses_is_not_tried_again_and_what_died_is(tmp_path, answer, tries):
    worker = Worker({"bk": answer})
    rows = measure(settings(rounds=3), ResultLog(tmp_path / "x.jsonl", "k"), worker, silent)
    assert worker.names.count("bk") == tries
    assert [row["result"] for row in rows if row["variant"] == "bk"] == [answer] * 3


def test_code_that_changes_meanwhile_stops_the_benchmark(tmp_path, monkeypatch):
    prints = iter(["a", "a", "b"])
    monkeypatch.setattr(module, "code_fingerprint", lambda: next(prints))
    with pytest.raises(BenchError, match="code changed"):
        measure(settings(), ResultLog(tmp_path / "x.jsonl", "k"), Worker(), silent)


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


def test_each_variant_is_searched_and_probes_are_kept(tmp_path):
    largest = {"none": 20, "bk": 10}

    def probe(job):
        fits = job["batch"] <= largest[job["name"]]
        return result(2.0) if fits else {"status": "oom", "message": "CUDA out of memory"}

    made = settings(batch=4, device="cuda")
    path = tmp_path / "x.jsonl"
    worker = Worker({"none": probe, "bk": probe})
    none, bk = largest_batches(made, ResultLog(path, "k"), worker.run, silent)
    assert {job["kind"] for job in worker.jobs} == {"fits"}
    assert (none.batch, none.too_large, none.examples_per_second) == (20, 21, 10.0)
    assert (bk.batch, bk.too_large) == (10, 11)
    again = Worker()
    assert largest_batches(made, ResultLog(path, "k"), again.run, silent) == [none, bk]
    assert again.jobs == []


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
