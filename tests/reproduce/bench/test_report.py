"""Tables, plots and JSON say what was measured, failures included."""

import json

import pytest

from dpft.reproduce.bench import report, summarise
from dpft.reproduce.bench.explain import fold
from dpft.reproduce.bench.largest import Largest
from dpft.reproduce.bench.plot import plot, plot_largest

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
    document = json.loads(json.dumps(report.document(made, FACTS, rows, summaries)))
    assert document["command"] == made.command
    assert document["environment"] == FACTS["environment"]
    assert document["settings"]["variants"] == [v.label for v in made.variants]
    assert document["settings"]["rounds"] == 1
    assert len(document["measurements"]) == 5
    assert document["measurements"][0]["load"] == [0.5, 0, 0]
    assert document["summary"][1]["time_ratio"] == {"median": 1.25, "min": 1.25, "max": 1.25}
    assert document["summary"][2]["message"] == REFUSED["message"]
    assert not {"date", "time", "host", "hostname"} & set(document)


def test_equal_measurements_give_equal_plots(measured, tmp_path):
    _, _, summaries = measured
    for name in ("a", "b"):
        plot(summaries, "a title", tmp_path / name)
        plot_largest([Largest("none", 8, 9, 1.0, None)], "a title", tmp_path / f"{name}-largest")
    for suffix in (".svg", "-largest.svg", ".png"):
        pair = [(tmp_path / f"{name}{suffix}").read_bytes() for name in ("a", "b")]
        assert pair[0] == pair[1]
    assert "<svg" in (tmp_path / "a.svg").read_text()
    plot([], "nothing", tmp_path / "none.yet")
    assert (tmp_path / "none.yet.png").is_file()


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


def entry(parameter, group="all", form="gram", shape=(2, 3)):
    return {"parameter": parameter, "group": group, "shape": shape, "form": form}


def test_equal_blocks_are_folded():
    rows = fold(
        [
            entry("wte.weight", form="token mask"),
            *(entry(f"h.{n}.fc1.weight", f"h.{n}.fc1") for n in (0, 1, 2, 4)),
            entry("h.3.fc1.weight", "h.3.fc1", form="instantiated"),
            *(entry(f"h.{n}.fc2.weight", f"h.{n}.fc2", shape=(3,)) for n in range(5)),
        ]
    )
    assert [row["parameter"] for row in rows] == [
        *("wte.weight", "h.0-2,4.fc1.weight", "h.3.fc1.weight", "h.0-4.fc2.weight"),
    ]
    assert rows[1]["group"] == "h.0-2,4.fc1"
    assert [row["shape"] for row in rows] == ["2x3", "2x3", "2x3", "3"]
    # Groups that are no blocks are not folded.
    assert len(fold([entry("h.0.w", "blocks 0 to 0"), entry("h.1.w", "blocks 1 to 1")])) == 2


def test_explaining_shows_errors_as_sentences(capsys):
    report.show_explained("ghost", REFUSED)
    report.show_explained("bk", {"status": "ok", "entries": [entry("h.0.w")]})
    text = capsys.readouterr().out
    assert "not this one" in text
    assert "h.0.w" in text


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
