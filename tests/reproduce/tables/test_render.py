"""One filled table in three forms."""

import csv
import io

import pytest
from rich.console import Console

from dpft.reproduce.tables.cells import EpsilonCell, fill
from dpft.reproduce.tables.record_index import make_index
from dpft.reproduce.tables.render import SUFFIXES, as_text_table, text_of
from tests.reproduce.tables.example import plan, run_of, write_record

EPSILONS = [
    (EpsilonCell("gdp_clt", (), 2.5, 2.51), EpsilonCell("prv", ("BLEU",), 2.8, 2.66)),
    *[()] * 4,
]


@pytest.fixture
def filled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    full = run_of(plan(), "full")
    write_record(tmp_path / "runs" / "a", full, 0, {"BLEU": 0.600, "ROUGE_L": 0.70})
    write_record(tmp_path / "runs" / "b", full, 1, {"BLEU": 0.612, "ROUGE_L": 0.70})
    write_record(tmp_path / "runs" / "c", run_of(plan(), "LoRA"), 0, {"BLEU": 0.50})
    return fill(plan(), make_index([tmp_path / "runs"]), EPSILONS)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_form_shows_numbers_and_no_folders(filled, suffix):
    text = text_of(filled, suffix)
    for number in ("60.0", "60.6", "69.0", "55.5", "66.6"):
        assert number in text
    assert str(filled.rows[0].cells[0].paths[0].parents[1]) not in text


def test_the_notes_name_what_is_shown_and_nothing_else(filled):
    shown = as_text_table(filled)
    assert [str(cell) for cell in shown.rows[0][-2:]] == ["2.5 / 2.510 =", "BLEU: 2.8 / 2.660 ≠"]
    text = " ".join(" ".join(note) for note in shown.notes)
    for words in ("Somebody 2019", "GPT-3 is not public", "The rate is the middle"):
        assert words in text
    assert "F: fewer seeds" in text
    assert "M: another model" not in text
    assert "the paper averages over 2 seeds; seeds asked for: 0, 1" in text


def test_csv_holds_every_field_of_every_cell(filled):
    rows = list(csv.DictReader(io.StringIO(text_of(filled, ".csv"))))
    assert len(rows) == 5 * 4
    first = rows[0]
    assert (first["is:method"], first["is:epsilon"], first["column"]) == ("full", "3", "bleu")
    assert float(first["ours"]) == pytest.approx(60.6)
    assert float(first["difference"]) == pytest.approx(0.6)
    assert (first["verdict"], first["marks"], first["seeds_found"]) == ("matches", "", "2")
    assert first["runs"] == "runs/a runs/b"
    by_place = {(r["is:method"], r["is:epsilon"], r["column"]): r for r in rows}
    assert by_place["theirs", "3", "bleu"]["verdict"] == "copied"
    assert by_place["LoRA", "3", "bleu"]["marks"] == "FD"
    assert by_place["full", "none", "bleu"]["printed_low"] == "68.0"


@pytest.mark.parametrize("width", [50, 80, 200])
def test_on_a_narrow_terminal_columns_move_and_no_number_is_cut(filled, width):
    shown = as_text_table(filled)
    stream = io.StringIO()
    shown.show(Console(file=stream, width=width))
    table = stream.getvalue().partition("Scale:")[0]
    assert "…" not in table
    for cells in shown.rows:
        assert all(line in table for cell in cells for line in str(cell).splitlines())
    # Every block has the labels.
    assert table.count("GPT-3") == table.count("epsilon")
    assert width == 80 or (table.count("epsilon") > 1) is (width < 80)
