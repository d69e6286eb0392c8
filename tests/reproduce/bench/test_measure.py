"""Rounds are interleaved and summarised within each; results have a table, and files are found."""

import json

import pytest

from dpft.reproduce.bench.documents import Spread, read_benches, summarise, table
from dpft.reproduce.bench.measure import BenchError, measure
from tests.reproduce.bench.fakes import FACTS, REFUSED, Worker, result, settings


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


def test_a_row_has_ratios_and_ranges_and_a_failure_its_message():
    made = settings(styles="bk,ghost", peers="opacus", rounds=1)
    outcomes = {"bk": result(1.25, 103e6), "ghost": REFUSED, "opacus": result(2.5, 2e8)}
    rows = [
        {"round": 0, "load": [0.5], "variant": name}
        | {"result": outcomes.get(name, result(1.0, 1e8))}
        for name in made.variants
    ]
    shown = table(made, FACTS, rows, summarise(made, rows))
    assert shown.title == "tiny, untied, B=8, T=64, float32, a processor, 1 thread, torch 2.0"
    assert shown.rows[1] == ("bk", "1.2500", "1.25 (1.25–1.25)", "103", "1.03 (1.03–1.03)")
    assert shown.rows[2] == ("ghost", *["-"] * 4)
    assert shown.rows[3][:3] == ("opacus", "2.5000", "2.50 (2.50–2.50)")
    notes = dict(shown.notes)
    assert "Load average of the machine at the start: 0.50" in notes["Measured"]
    assert notes["ghost"].startswith(REFUSED["message"])


def names(folders=None):
    """Of the files that were read, each with its styles; and the lines for damaged ones."""
    files, damaged = read_benches(folders)
    return [(file.path.name, list(file.styles)) for file in files], damaged


def write(file, *styles):
    settings = {"model": "gpt2", "length": 100, "batch": 4, "device": "cpu"}
    summary = [{"label": style, "rounds": 7} for style in styles]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"settings": settings, "labels": ["gpt2"], "summary": summary}))


def test_files_come_by_path_and_once_each(tmp_path):
    write(tmp_path / "b.json", "bk")
    write(tmp_path / "a" / "deep.json", "materialised", "ghost")
    (tmp_path / "c.json").symlink_to(tmp_path / "b.json")
    (tmp_path / "other.json").write_text('{"something": "else"}')
    (tmp_path / "list.json").write_text("[1, 2]")
    files, damaged = names([tmp_path, tmp_path / "a"])
    assert files == [("deep.json", ["materialised", "ghost"]), ("b.json", ["bk"])]
    assert not damaged


def test_damaged_files_are_named_and_the_others_read(tmp_path):
    (tmp_path / "cut.json").write_text('{"summary": [')
    (tmp_path / "keys.json").write_text('{"summary": [{"name": "bk"}]}')
    (tmp_path / "latin.json").write_bytes(b'{"summary": "\xe9"}')
    (tmp_path / "number.json").write_text("3")
    (tmp_path / "circle.json").symlink_to(tmp_path / "circle.json")
    write(tmp_path / "whole.json", "bk")
    files, damaged = names([tmp_path])
    assert files == [("whole.json", ["bk"])]
    broken = ["circle", "cut", "keys", "latin", "number"]
    assert [line.split()[0] for line in damaged] == [f"{tmp_path}/{name}.json" for name in broken]
    assert "KeyError('settings')" in damaged[2]
