"""Tables, plots and JSON say what was measured, failures included."""

import json

import pytest

from dpft.reproduce.bench import report
from dpft.reproduce.bench.documents import summarise
from dpft.reproduce.bench.measure import Largest

from .fakes import FACTS, REFUSED, result, settings


@pytest.fixture
def measured():
    made = settings(styles="bk,ghost", peers="opacus", rounds=1)
    outcomes = {"bk": result(1.25, 103e6), "ghost": REFUSED, "opacus (untied)": result(2.5, 2e8)}
    rows = [
        {
            **{"key": "k", "session": 1, "round": 0, "position": place, "load": [0.5, 0, 0]},
            **{"variant": v.label, "result": outcomes.get(v.label, result(1.0, 1e8))},
        }
        for place, v in enumerate(made.variants)
    ]
    return made, rows, summarise(made, rows)


def test_a_row_holds_ratios_and_ranges(measured):
    _, _, summaries = measured
    assert report.cells(summaries[1]) == {
        "style": "bk",
        "seconds": "1.250",
        "time ratio": "1.25",
        "time range": "1.25–1.25",
        "peak MB": "103",
        "memory ratio": "1.03",
        "memory range": "1.03–1.03",
        "whole run": "1.02",
    }
    assert set(list(report.cells(summaries[2]).values())[1:]) == {"-"}


def test_markdown_is_a_table_with_all_that_must_be_read_with_it(measured):
    made, rows, summaries = measured
    notes = [report.note(made, rows[0]["load"]), *report.remarks(summaries)]
    text = report.as_markdown(
        ", ".join(report.labels(made, FACTS)), [report.cells(s) for s in summaries], notes
    )
    lines = text.splitlines()
    assert lines[0] == "# tiny, tied, B=8, T=64, float32, a processor, 1 thread, torch 2.0"
    assert lines[2].startswith("| style | seconds | time ratio |")
    assert lines[5].startswith("| bk | 1.250 | 1.25 |")
    assert "| opacus (untied) | 2.500 | 2.50 |" in text
    assert "ghost: ValueError: not this one" in text
    assert "compared with none (untied)" in text
    assert "Load average of the machine when it began: 0.50" in text


@pytest.mark.parametrize(
    ("typed", "facts", "label"),
    [
        ({"untied": True}, {}, "untied"),
        ({"dtype": "bfloat16"}, {}, "bfloat16 autocast"),
        ({"threads": 2}, {}, "a processor, 2 threads"),
        ({"model": "wrn16-4"}, {}, "B=32"),
        ({}, {"device": "cuda"}, "a fast one"),
        ({"memory": 24.0}, {"device": "cuda"}, "at most 24 GiB"),
    ],
)
def test_labels(typed, facts, label):
    environment = {"environment": FACTS["environment"] | {"gpu": "a fast one"}}
    assert label in report.labels(settings(**typed), FACTS | environment | facts)


def test_the_terminal_shows_whole_figures(measured, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, _, summaries = measured
    table = [report.cells(summary) for summary in summaries]
    report.show("title [x]", table, report.remarks(summaries))
    text = capsys.readouterr().out
    assert "title [x]" in text
    for figure in ("1.25–1.25", "opacus (untied)", "ghost: ValueError"):
        assert figure in text


def test_json_holds_raw_measurements_and_no_date(measured):
    made, rows, summaries = measured
    document = json.loads(json.dumps(report.measured_document(made, FACTS, rows, summaries)))
    assert document["command"] == made.command
    assert document["environment"] == FACTS["environment"]
    assert document["settings"]["variants"] == [v.label for v in made.variants]
    assert document["settings"]["rounds"] == 1
    assert len(document["measurements"]) == 5
    assert document["measurements"][0]["load"] == [0.5, 0, 0]
    assert document["summary"][1]["time_ratio"] == {"median": 1.25, "min": 1.25, "max": 1.25}
    assert document["summary"][2]["message"] == REFUSED["message"]
    assert not {"date", "time", "host", "hostname"} & set(document)


def test_a_plot_needs_no_measurement_that_succeeded(measured, tmp_path):
    for name, summaries in (("some", measured[2]), ("none", [])):
        report.plot(summaries, "a title", tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 1000


def test_largest_batches_are_compared_with_their_baseline():
    cells = report.largest_cells(Largest("bk", 30, 31, 12.34, None), 40)
    assert cells == {
        "style": "bk",
        "largest batch": "30",
        "does not fit": "31",
        "ratio": "0.75",
        "examples/s": "12.3",
    }
    failed = Largest("ghost", 0, None, None, "no")
    assert set(list(report.largest_cells(failed, 40).values())[1:]) == {"-"}
    assert report.remarks([failed]) == ["ghost: no"]


def test_where_time_alone_was_measured_memory_is_left_out():
    made = settings(styles="bk", time_only=True)
    rows = [
        {"round": 0, "variant": v.label, "result": {"status": "ok", "seconds": [1.0 + place],
         "gradient_norm": 0.1}}
        for place, v in enumerate(made.variants)
    ]  # fmt: skip
    row = report.cells(summarise(made, rows)[1])
    assert (row["time ratio"], row["peak MB"], row["memory ratio"]) == ("2.00", "-", "-")
    assert "Memory" not in report.note(made, None)
