"""``dpft claims`` as it is typed, in a folder that is empty."""

import json

import pytest
from rich.text import Text
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.reproduce.claims.report import Page, as_markdown
from dpft.reproduce.tables import record_index


@pytest.fixture(autouse=True)
def _empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Nor are the results of the checkout there.
    monkeypatch.setattr(record_index, "conf_dir", lambda: tmp_path / "conf")


def invoke(*words):
    return CliRunner().invoke(app, ["claims", *words])


def test_a_papers_claims_without_any_record():
    result = invoke("he2022")
    assert result.exit_code == 0, result.output
    assert "he2022/c13" in result.stdout
    assert "mixed (5 of 8 hold)" in result.stdout
    assert "dpft table he2022/1a scale=laptop --seeds 0,1,2 --run  # he2022/c03" in result.stdout
    assert "1% where no deviation is known" in " ".join(result.stdout.split())


def test_one_claim_with_its_numbers(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")  # no cell is wrapped
    result = invoke("li2022/c02")
    assert result.exit_code == 0, result.output
    assert "91.86 and 86.12: +5.74" in result.stdout
    assert "better by 3 to 5" in result.stdout
    assert "dpft table li2022/1 --run" in result.stdout


def test_json_and_a_damaged_benchmark(tmp_path):
    benches = tmp_path / "benches"
    benches.mkdir()
    (benches / "broken.json").write_text("{")
    result = invoke("bu2023/c12", "--format", "json", "--bench", "benches")
    assert result.exit_code == 0, result.output
    (one,) = json.loads(result.stdout)
    assert one["ours"]["verdict"] == "holds"
    assert one["ours"]["scale"] == ["computed"]
    assert len(one["comparisons"]) == 2
    assert "broken.json" in result.stderr


def test_markdown_by_the_suffix(tmp_path):
    result = invoke("li2022/c07", "--out", "deep/claim.md")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "deep" / "claim.md").read_text()
    assert page.startswith("# li2022/c07\n")
    assert "| computed |" in page
    assert "mixed (2 of 3 hold)" in page


def test_markdown_is_one_table_whatever_a_cell_holds():
    page = Page(("claim", "found"), [[Text("c1"), Text("runs/a\nb|c&lt;\x1b[1m")]])
    rows = [line for line in as_markdown(page).splitlines() if line]
    assert rows[0] == "# Claims"
    assert rows[1:3] == ["| claim | found |", "| --- | --- |"]
    (row,) = rows[3:]
    assert row.startswith("| c1 | runs/a b\\|c\\&lt;")
    assert "\x1b" not in row


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["li2023"], "no claims of 'li2023'; did you mean 'li2022'?"),
        (["li2022/c99"], "no claim 'li2022/c99'"),
        (["li2022", "--format", "csv"], "expected one of terminal, markdown, json"),
        (["li2022", "--out", "x.pdf"], "expected a file ending in"),
        (["li2022", "--runs", "nowhere"], "--runs nowhere is no folder"),
        (["li2022", "--bench", "nowhere"], "--bench nowhere is no folder"),
    ],
)
def test_what_cannot_be_is_told(words, said):
    result = invoke(*words)
    assert result.exit_code == 2
    assert said in result.stderr
