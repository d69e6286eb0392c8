"""One filled table in five forms."""

import csv
import html.parser
import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from dpft.reproduce.papers import load
from dpft.reproduce.tables.cells import fill
from dpft.reproduce.tables.epsilons import EpsilonCell
from dpft.reproduce.tables.plan import empty_plan
from dpft.reproduce.tables.record_index import Index, make_index
from dpft.reproduce.tables.render import FORMATS, show
from dpft.reproduce.tables.render.latex import escaped
from dpft.reproduce.tables.text_table import as_text_table, shown_extra
from dpft.reproduce.tables.verdicts import CellVerdict
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


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_shows_numbers_verdicts_and_notes(filled, form):
    text = FORMATS[form](filled)
    assert text.endswith("\n")
    if form == "csv":
        numbers = ("60.0", "60.6", "69.0", "55.5", "66.6")
    else:
        numbers = ("60.00", "60.60", "69.00", "55.50", "66.60")
        for words in ("Somebody 2019", "GPT-3 is not public", "Kendall", "The rate is the middle"):
            assert words in " ".join(text.split())
    for number in numbers:
        assert number in text
    assert str(filled.rows[0].cells[0].paths[0].parents[1]) not in text  # no folders of a machine


def test_csv_holds_every_field_of_every_cell(filled):
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](filled))))
    assert len(rows) == 5 * 4 + 2
    first = rows[0]
    assert (first["is:method"], first["is:epsilon"], first["column"]) == ("full", "3", "bleu")
    assert float(first["ours"]) == pytest.approx(60.6)
    assert float(first["difference"]) == pytest.approx(0.6)
    assert (first["verdict"], first["marks"], first["seeds_found"]) == ("matches", "", "2")
    assert first["runs"] == "runs/a runs/b"
    by_place = {(r["is:method"], r["is:epsilon"], r["column"]): r for r in rows}
    altered = replace(
        filled, plan=replace(filled.plan, extra=("optim.lr=1", "task.data_dir=/home/me/e2e"))
    )
    assert {r["overrides"] for r in csv.DictReader(io.StringIO(FORMATS["csv"](altered)))} == {
        "optim.lr=1"
    }
    assert by_place["theirs", "3", "bleu"]["verdict"] == "copied"
    assert by_place["LoRA", "3", "bleu"]["marks"] == "FD"
    assert by_place["full", "none", "bleu"]["printed_low"] == "68.0"
    assert by_place["full", "3", "epsilon_prv"]["verdict"] == "not reproduced"


def test_markdown_is_one_table_of_equal_rows(filled):
    lines = [x for x in FORMATS["markdown"](filled).splitlines() if x.startswith("|")]
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert widths == {2 + 4 + 2 + 1}
    assert len(lines) == 2 + 5
    assert "60.60 ± 0.85 (2)<br>+0.60 =" in lines[2]
    assert "(1/2)<br>-8.00 ↓ FD" in lines[4]
    assert "2.8 / 2.660 ≠" in lines[2]


def test_latex_escapes_what_latex_reads():
    assert escaped("5% of A&B_1 #2 $3 {x} ~ ^ \\") == (
        r"5\% of A\&B\_1 \#2 \$3 \{x\} $\sim$ \textasciicircum{} \textbackslash{}"
    )


def test_latex_is_a_booktabs_table(filled):
    text = FORMATS["latex"](filled)
    assert r"Five ways to 100\% \& one\_more" in text
    assert text.count(r"\begin{tabular}{llrrrrrr}") == 1
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert text.count(rule) == 1
    body = text.partition(r"\midrule")[2].partition(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == 5
    assert all(len(re.findall(r"(?<!\\)&", line)) == 7 and line.endswith(r"\\") for line in body)
    assert text.isascii()


class _Balance(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.cells = [], 0

    def handle_starttag(self, tag, attrs):
        self.cells += tag == "td"
        if tag != "meta":
            self.open.append(tag)
        assert "src" not in dict(attrs)
        assert dict(attrs).get("href", "#").startswith("#")  # of the page itself

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_needs_nothing_else_and_closes_its_tags(filled):
    text = FORMATS["html"](filled)
    page = _Balance()
    page.feed(text)
    assert (page.open, page.cells) == ([], 5 * (2 + 4 + 2))
    assert "prefers-color-scheme: dark" in text
    assert "Five ways to 100% &amp; one_more" in text
    assert re.search(r'class="matches"[^>]*>\+0.60 =<', text)
    assert re.search(r'class="worse"[^>]*>-8.00 ↓ FD<', text)


def test_terminal_explains_only_what_it_shows(filled):
    text = FORMATS["terminal"](filled)
    assert "F: fewer seeds" in text
    assert "M: another model" not in text
    assert "~ trend" not in text
    assert "the paper averages over 2 seeds; seeds asked for: 0, 1" in " ".join(text.split())


def test_overrides_are_told_without_folders(tmp_path):
    the_plan = plan(extra=("optim.epochs=1", "task.data_dir=/home/me", "model.path=/home/me/gpt2"))
    text = FORMATS["markdown"](fill(the_plan, make_index([tmp_path])))
    assert "optim.epochs=1 model.path=..." in text
    assert "/home" not in text


@pytest.mark.parametrize("word", ["cache=off", "parallel=fsdp", "parallel.shards=2", "device=cpu"])
def test_how_a_machine_runs_it_is_no_override_of_the_table(filled, word):
    altered = replace(filled, plan=replace(filled.plan, extra=("optim.lr=1", word)))
    assert shown_extra(altered) == "optim.lr=1"


def test_laptop_scale_is_said_on_the_table(tmp_path):
    the_plan = plan("laptop")
    write_record(tmp_path / "a", run_of(the_plan, "full"), 0, {"BLEU": 0.2})
    laptop = fill(the_plan, make_index([tmp_path]))
    for form in ("terminal", "markdown", "html", "latex"):
        text = " ".join(FORMATS[form](laptop).split())
        assert "LAPTOP SCALE" in text
        assert "The bundled model stands in for GPT-2." in text
        assert "scale=laptop" in text
        assert "LS" in text


@pytest.mark.parametrize("width", [50, 80, 200])
def test_on_a_narrow_terminal_columns_move_and_no_number_is_cut(filled, width):
    stream = io.StringIO()
    show(filled, Console(file=stream, width=width))
    text = stream.getvalue()
    table = text.partition("Scale:")[0]

    assert "…" not in table
    for _, cells in as_text_table(filled).rows:
        assert all(line in table for cell in cells for line in cell.lines)
    # Every block has the labels.
    assert table.count("GPT-3") == table.count("epsilon")
    assert width == 80 or (table.count("epsilon") > 1) is (width < 80)


def test_a_deviation_is_shown_as_it_is_printed_with_more_digits_than_its_mean():
    table = fill(empty_plan(load("he2022", "11a"), "paper"), Index())
    for printed in ("63.1 ± 0.22", "67.8 ± 1.2", "63.7 ± 0.34"):
        assert f"| {printed} ·" in FORMATS["markdown"](table)


def test_what_the_paper_does_not_explain_is_shown_and_not_reckoned_with(tmp_path):
    the_plan = plan()
    rows = [replace(row, unexplained={"bleu": 5.0}, std={}, ci95={}) for row in the_plan.rows]
    strange = replace(the_plan, rows=tuple(rows))
    write_record(tmp_path / "a", run_of(plan(), "full"), 0, {"BLEU": 0.65})
    one = fill(strange, make_index([tmp_path]))
    cell = one.rows[0].cells[0]

    assert "60.00 ± 5.00?" in FORMATS["markdown"](one)
    assert (cell.verdict, cell.spread) == (CellVerdict.ABOVE, None)
