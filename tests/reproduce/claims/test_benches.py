"""Ratios out of files of dpft bench."""

import json

import pytest

from dpft.reproduce.bench.documents import read_benches
from dpft.reproduce.claims.claim import BenchCheck
from dpft.reproduce.claims.comparison import Outcome
from dpft.reproduce.claims.evaluate import compare_benches


def spread(median, low=None, high=None):
    return {"median": median, "min": low or median, "max": high or median}


def compared(folder, check, summary=(), *, name="a", model="gpt2", device="cpu", **sections):
    """The comparisons and commands, once this file is written too."""
    settings = {"model": model, "length": 100, "batch": 4, "device": device}
    content = {"settings": settings, "labels": [model, "B=4"], "summary": summary, **sections}
    (folder / f"{name}.json").write_text(json.dumps(content))
    files, damaged = read_benches([folder])
    assert not damaged
    return compare_benches(check, files)


def check(first, second, low=None, high=None, quantity="time", tokens=None):
    words = (quantity, first.split(), second.split(), (low, high), ("gpt2",), "dpft bench", tokens)
    return BenchCheck(*words)


def times(rounds=7, **styles):
    return [
        {"label": label, "rounds": rounds, "time_ratio": time} for label, time in styles.items()
    ]


@pytest.mark.parametrize(
    ("high", "outcome"),
    [(1.2, Outcome.HOLDS), (1.05, Outcome.CLOSE), (0.8, Outcome.FAILS)],
)
def test_time_relative_to_non_private(tmp_path, high, outcome):
    summary = times(none=spread(1.0), bk=spread(1.01, 0.89, 1.11))
    (one,), commands = compared(tmp_path, check("bk", "none", high=high), summary)
    assert one.outcome is outcome
    assert one.text == "1.01 (0.89 to 1.11)"
    assert (one.brief, one.runs, commands) == ("gpt2 on cpu", ("a.json",), [])


def test_two_styles_have_the_widest_range_that_theirs_allow(tmp_path):
    summary = times(none=spread(1.0), flat=spread(3.0, 2.8, 3.2), bk=spread(1.0, 0.8, 1.6))
    summary += times(opacus=spread(4.0))
    (flat, opacus), _ = compared(tmp_path, check("flat opacus", "bk", low=1.8), summary)
    assert flat.numbers == {"ratio": 3.0, "low": 2.8 / 1.6, "high": pytest.approx(4.0)}
    assert (flat.outcome, opacus.outcome) == (Outcome.CLOSE, Outcome.HOLDS)


def test_tied_and_untied_styles_are_not_compared(tmp_path):
    peers = {"none (untied)": spread(1.0), "opacus (untied)": spread(4.0)}
    summary = times(none=spread(1.0), bk=spread(1.0), **peers)
    (one,), commands = compared(tmp_path, check("opacus", "bk", low=1.8), summary)
    assert (one.outcome, commands) == (Outcome.NOT_YET, ["dpft bench"])
    (one,), _ = compared(tmp_path, check("opacus", "none", low=1.8), summary)  # none (untied)
    assert one.numbers["ratio"] == 4.0


@pytest.mark.parametrize(("rounds", "outcome"), [(2, Outcome.NOT_YET), (3, Outcome.HOLDS)])
def test_fewer_than_three_rounds_do_not_count(tmp_path, rounds, outcome):
    summary = times(rounds, none=spread(1.0), bk=spread(1.1))
    (one,), _ = compared(tmp_path, check("bk", "none", high=1.2), summary)
    assert one.outcome is outcome


@pytest.mark.parametrize(
    ("device", "outcome", "commands"),
    [("cpu", Outcome.CLOSE, ["dpft bench --device cuda"]), ("cuda", Outcome.FAILS, [])],
)
def test_memory_is_decided_on_a_gpu(tmp_path, device, outcome, commands):
    summary = [
        {"label": label, "rounds": 7, "memory_ratio": spread(ratio)}
        for label, ratio in (("none", 1.0), ("bk", 1.08))
    ]
    asked = check("bk", "none", low=1.2, high=1.4, quantity="memory")
    (one,), typed = compared(tmp_path, asked, summary, device=device)
    assert (one.outcome, one.text[:4], typed) == (outcome, "1.08", commands)


def test_largest_batches(tmp_path):
    largest = [
        {"label": label, "batch": batch, "examples_per_second": speed, "message": message}
        for label, batch, speed, message in (
            ("none", 100, 50.0, None),
            ("ghost", 96, 40.0, None),
            ("opacus", 30, 20.0, None),
            ("flat", 0, None, "out of memory"),
        )
    ]
    batch = check("ghost", "opacus flat", low=2.5, quantity="batch")
    (one,), _ = compared(tmp_path, batch, largest_batch=largest)
    assert (one.numbers["ratio"], one.outcome) == (pytest.approx(3.2), Outcome.HOLDS)
    speed = check("ghost", "none", low=0.9, quantity="speed")
    (one,), _ = compared(tmp_path, speed, largest_batch=largest)
    assert one.outcome is Outcome.FAILS


def test_other_models_and_shorter_texts_do_not_count(tmp_path):
    summary = times(none=spread(1.0), bk=spread(1.0))
    compared(tmp_path, check("bk", "none", high=1.2), summary, model="tiny")
    found = compared(tmp_path, check("bk", "none", high=1.2), summary, name="b")[0]
    assert [one.runs for one in found] == [("b.json",)]
    (one,), _ = compared(tmp_path, check("bk", "none", high=1.2, tokens=512), summary, name="b")
    assert one.outcome is Outcome.NOT_YET
