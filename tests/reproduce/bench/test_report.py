"""Tables, plots and JSON say what was measured, failures included."""

import pytest

from dpft.reproduce.bench import report
from dpft.reproduce.bench.documents import summarise

from .fakes import FACTS, REFUSED, result, settings


@pytest.fixture
def measured():
    made = settings(styles="bk,ghost", peers="opacus", rounds=1)
    outcomes = {"bk": result(1.25, 103e6), "ghost": REFUSED, "opacus (untied)": result(2.5, 2e8)}
    rows = [
        {
            **{"round": 0, "load": [0.5, 0, 0], "variant": v.label},
            "result": outcomes.get(v.label, result(1.0, 1e8)),
        }
        for v in made.variants
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
