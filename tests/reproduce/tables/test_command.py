"""``dpft table`` as it is typed."""

import csv
import io
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dpft.cli import sweep
from dpft.cli.app import app
from dpft.reproduce import papers
from tests.reproduce.tables.example import PAPERS, plan, run_of, write_record


@pytest.fixture(autouse=True)
def _demo_only(tmp_path, monkeypatch):
    monkeypatch.setattr(papers, "ROOT", PAPERS)
    monkeypatch.chdir(tmp_path)


def invoke(*words):
    return CliRunner().invoke(app, ["table", *words])


def test_a_table_from_the_records_of_a_folder(tmp_path):
    write_record(tmp_path / "runs" / "x", run_of(plan("laptop"), "full"), 0, {"BLEU": 0.33})
    (tmp_path / "runs" / "y").mkdir()
    (tmp_path / "runs" / "y" / "record.json").write_text("{")
    result = invoke("demo/1", "scale=laptop", "--out", "deep/table.csv")
    assert result.exit_code == 0, result.output
    assert "runs/y" in result.stderr
    assert "1 of 3 cells have a number" in result.stderr
    rows = list(csv.DictReader(io.StringIO((tmp_path / "deep" / "table.csv").read_text())))
    assert float(rows[0]["ours"]) == pytest.approx(33)
    assert rows[0]["verdict"] == "trend"
    assert invoke("demo/1", "scale=laptop", "--out", "table.md").exit_code == 0
    assert "LAPTOP SCALE" in (tmp_path / "table.md").read_text()


def test_missing_prints_commands_and_nothing_else(tmp_path):
    write_record(tmp_path / "elsewhere" / "x", run_of(plan(), "full"), 1, {"BLEU": 0.6})
    result = invoke(
        *("demo/1", "--missing", "--seeds", "1,4", "--runs", "elsewhere", "device=cpu"),
    )
    lines = result.stdout.splitlines()
    assert all(line.startswith("dpft train ") and " device=cpu" in line for line in lines)
    assert {shlex.split(line)[-1] for line in lines} == {"seed=1", "seed=4"}
    assert len(lines) == 4 * 2 - 1
    assert "7 runs are missing" in result.stderr


def test_run_hands_what_lacks_to_a_sweep(tmp_path, monkeypatch):
    calls = []

    def swept(words, *, file):
        calls.append((list(words), file.read_text()))
        write_record(tmp_path / "mine" / "x", run_of(plan("laptop"), "full"), 0, {"BLEU": 0.3})
        raise typer.Exit(1)  # as where one of them failed

    monkeypatch.setattr(sweep, "run_sweep", swept)
    result = invoke(
        *("demo/1", "scale=laptop", "--run", "hydra/launcher=joblib", "runs_dir=mine"),
        *("--out", "table.csv"),
    )
    assert result.exit_code == 1
    ((words, text),) = calls
    assert words == ["hydra/launcher=joblib", "runs_dir=mine"]
    assert [shlex.split(line)[-2:] for line in text.splitlines()] == [
        ["runs_dir=mine", "seed=0"]
    ] * 2
    assert (
        "30.0," in Path("table.csv").read_text()
    )  # the table is shown all the same, with what was made
