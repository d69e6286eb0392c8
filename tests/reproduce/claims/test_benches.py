"""Ratios out of files of dpft bench."""

import json

import pytest

from dpft.config.errors import ConfigError
from dpft.reproduce.bench.documents import read_benches
from dpft.reproduce.claims.benches import bench_commands, compare_benches
from dpft.reproduce.claims.comparison import Outcome
from dpft.reproduce.claims.schema import BenchCheck


def spread(median, low=None, high=None):
    return {"median": median, "min": low or median, "max": high or median}


def document(model="gpt2", length=100, **sections):
    settings = {"model": model, "length": length, "batch": 4, "device": "cpu"}
    return {"settings": settings, "labels": [model, "B=4"], **sections}


def summary(**styles):
    return [
        {"label": label, "rounds": 7, "time_ratio": time, "memory_ratio": None}
        for label, time in styles.items()
    ]


def write(folder, name, content):
    (folder / name).write_text(json.dumps(content))


def check(first, second, low=None, high=None, quantity="time", tokens=None):
    return BenchCheck(quantity, first, second, (low, high), ("gpt2",), "dpft bench", tokens)


def compared(the_check, folder):
    files, damaged = read_benches([folder])
    assert not damaged
    return compare_benches(the_check, files)


@pytest.mark.parametrize(
    ("high", "outcome"),
    [(1.2, Outcome.HOLDS), (1.05, Outcome.CLOSE), (0.8, Outcome.FAILS)],
)
def test_time_relative_to_non_private(tmp_path, high, outcome):
    found = summary(none=spread(1.0), bk=spread(1.01, 0.89, 1.11))
    write(tmp_path, "a.json", document(summary=found))
    (one,) = compared(check(("bk",), ("none",), high=high), tmp_path)
    assert one.outcome is outcome
    assert one.text == "1.01 (0.89 to 1.11)"
    assert one.brief == "gpt2 on cpu"
    assert one.runs == ("a.json",)


def test_two_styles_have_the_widest_range_that_theirs_allow(tmp_path):
    found = summary(none=spread(1.0), flat=spread(3.0, 2.8, 3.2), bk=spread(1.0, 0.8, 1.6))
    found += summary(opacus=spread(4.0))
    write(tmp_path, "a.json", document(summary=found))
    flat, opacus = compared(check(("flat", "opacus"), ("bk",), low=1.8), tmp_path)
    assert flat.numbers == {"ratio": 3.0, "low": 2.8 / 1.6, "high": pytest.approx(4.0)}
    assert flat.outcome is Outcome.CLOSE
    assert opacus.outcome is Outcome.HOLDS


def test_tied_and_untied_styles_are_not_compared(tmp_path):
    peers = {"none (untied)": spread(1.0), "opacus (untied)": spread(4.0)}
    found = summary(none=spread(1.0), bk=spread(1.0), **peers)
    write(tmp_path, "a.json", document(summary=found))
    (one,) = compared(check(("opacus",), ("bk",), low=1.8), tmp_path)
    assert one.outcome is Outcome.LACKING
    (one,) = compared(check(("opacus",), ("none",), low=1.8), tmp_path)  # none (untied)
    assert one.numbers["ratio"] == 4.0


@pytest.mark.parametrize(("rounds", "outcome"), [(2, Outcome.LACKING), (3, Outcome.HOLDS)])
def test_fewer_than_three_rounds_do_not_count(tmp_path, rounds, outcome):
    found = [one | {"rounds": rounds} for one in summary(none=spread(1.0), bk=spread(1.1))]
    write(tmp_path, "a.json", document(summary=found))
    (one,) = compared(check(("bk",), ("none",), high=1.2), tmp_path)
    assert one.outcome is outcome


@pytest.mark.parametrize(
    ("device", "outcome", "commands"),
    [("cpu", Outcome.CLOSE, ["dpft bench --device cuda"]), ("cuda", Outcome.FAILS, [])],
)
def test_memory_is_decided_on_a_gpu(tmp_path, device, outcome, commands):
    found = [
        {"label": label, "rounds": 7, "time_ratio": None, "memory_ratio": spread(ratio)}
        for label, ratio in (("none", 1.0), ("bk", 1.08))
    ]
    content = document(summary=found)
    content["settings"]["device"] = device
    write(tmp_path, "a.json", content)
    the_check = check(("bk",), ("none",), low=1.2, high=1.4, quantity="memory")
    (one,) = compared(the_check, tmp_path)
    assert one.outcome is outcome
    assert one.text.startswith("1.08")
    assert bench_commands(the_check, [one]) == commands


def test_largest_batches(tmp_path):
    found = [
        {"label": label, "batch": batch, "examples_per_second": speed, "message": message}
        for label, batch, speed, message in (
            ("none", 100, 50.0, None),
            ("ghost", 96, 40.0, None),
            ("opacus", 30, 20.0, None),
            ("flat", 0, None, "out of memory"),
        )
    ]
    write(tmp_path, "a.json", document(largest_batch=found))
    the_check = check(("ghost",), ("opacus", "flat"), low=2.5, quantity="batch")
    (one,) = compared(the_check, tmp_path)
    assert one.numbers["ratio"] == pytest.approx(3.2)
    assert one.outcome is Outcome.HOLDS
    (one,) = compared(check(("ghost",), ("none",), low=0.9, quantity="speed"), tmp_path)
    assert one.outcome is Outcome.FAILS


def test_other_models_and_shorter_texts_do_not_count(tmp_path):
    found = summary(none=spread(1.0), bk=spread(1.0))
    write(tmp_path, "a.json", document("tiny", summary=found))
    write(tmp_path, "b.json", document(length=100, summary=found))
    write(tmp_path, "c.json", {"something": "else"})
    (one,) = compared(check(("bk",), ("none",), high=1.2, tokens=512), tmp_path)
    assert one.outcome is Outcome.LACKING
    assert len(compared(check(("bk",), ("none",), high=1.2), tmp_path)) == 1


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "a.json").write_text("{")
    write(tmp_path, "b.json", {"summary": []})
    files, damaged = read_benches([tmp_path])
    assert not files
    assert [line.split()[0].rpartition("/")[2] for line in damaged] == ["a.json", "b.json"]
    with pytest.raises(ConfigError, match=r"--bench .* is no folder"):
        read_benches([tmp_path / "nowhere"])
