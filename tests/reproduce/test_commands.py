"""``dpft table`` and ``figure`` as they are typed, in a folder without results."""

import csv
import shlex

import pytest
import typer
from typer.testing import CliRunner

from dpft.cli import sweep
from dpft.cli.app import app
from dpft.reproduce import papers
from dpft.reproduce.tables import record_index
from tests.reproduce.figures.example import planned
from tests.reproduce.tables.example import PAPERS, plan, run_of, write_record


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Nor are the results of the checkout there.
    monkeypatch.setattr(record_index, "conf_dir", lambda: tmp_path / "conf")


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.setattr(papers, "ROOT", PAPERS)


def invoke(*words, exit_code=0):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == exit_code, result.output
    return result


def rows_of(file):
    return list(csv.DictReader(file.read_text().splitlines()))


def test_a_table_from_the_records_of_a_folder(demo, tmp_path):
    write_record(tmp_path / "runs/x", run_of(plan("laptop"), "full"), 0, {"BLEU": 0.33})
    (tmp_path / "runs/y").mkdir()
    (tmp_path / "runs/y/record.json").write_text("{")
    result = invoke("table", "demo/1", "scale=laptop", "--out", "deep/table.csv")
    assert "runs/y" in result.stderr
    assert "1 of 3 cells have a number" in result.stderr
    first, *_ = rows_of(tmp_path / "deep/table.csv")
    assert (float(first["ours"]), first["verdict"]) == (pytest.approx(33), "trend")
    invoke("table", "demo/1", "scale=laptop", "--out", "table.md")
    assert "LAPTOP SCALE" in (tmp_path / "table.md").read_text()


def test_missing_prints_commands_and_nothing_else(demo, tmp_path):
    write_record(tmp_path / "elsewhere/x", run_of(plan(), "full"), 1, {"BLEU": 0.6})
    words = ("--missing", "--seeds", "1,4", "--runs", "elsewhere", "device=cpu")
    result = invoke("table", "demo/1", *words)
    lines = result.stdout.splitlines()
    assert all(line.startswith("dpft train ") and " device=cpu" in line for line in lines)
    assert {shlex.split(line)[-1] for line in lines} == {"seed=1", "seed=4"}
    assert len(lines) == 4 * 2 - 1
    assert "7 runs are missing" in result.stderr


def test_run_hands_what_lacks_to_a_sweep_and_shows_the_table_with_what_was_made(
    demo, tmp_path, monkeypatch
):
    calls = []

    def swept(words, *, file, chooses):
        calls.append((list(words), file.read_text()))
        write_record(tmp_path / "mine/x", run_of(plan("laptop"), "full"), 0, {"BLEU": 0.3})
        raise typer.Exit(1)  # as where one of them failed

    monkeypatch.setattr(sweep, "run_sweep", swept)
    given = ["hydra/launcher=joblib", "runs_dir=mine"]
    words = ("scale=laptop", "--run", *given, "--out", "table.csv", "--runs", "mine")
    invoke("table", "demo/1", *words, exit_code=1)
    ((handed, text),) = calls
    assert handed == given
    ends = [shlex.split(line)[-2:] for line in text.splitlines()]
    assert ends == [["runs_dir=mine", "seed=0"]] * 2
    assert "30.0," in (tmp_path / "table.csv").read_text()


def test_a_figure_is_three_files(tmp_path):
    one = planned("he2022/6", share=1, epsilon=3)
    write_record(tmp_path / "runs/x", one, 0, {"accuracy": 0.8}, "dev")
    result = invoke("figure", "he2022/6", "scale=laptop", "--out", "here")
    assert result.stdout.split() == [f"here/he2022-6.{s}" for s in ("png", "svg", "csv")]
    assert "7 runs are missing" in result.stderr
    (row,) = rows_of(tmp_path / "here/he2022-6.csv")
    assert (row["series"], row["origin"], float(row["x"])) == ("epsilon 3", "ours", 1)
    assert (float(row["y"]), row["source"]) == (pytest.approx(80), "x")
    assert "laptop scale" in (tmp_path / "here/he2022-6.svg").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["li2022/66"], "did you mean 'li2022/6'?"),
        (["bu2023/2"], "has no data"),
        (["li2022/6", "eps=3"], "computed from the paper alone"),
        (["he2022/2"], "record_norms"),
        (["bu2023/5"], "type dpft bench"),
        (["li2022/4"], "dpft plan --largest"),
    ],
)
def test_a_figure_that_cannot_be_is_refused(words, message):
    assert message in invoke("figure", *words, exit_code=2).stderr
