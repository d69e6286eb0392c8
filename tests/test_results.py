"""What is committed under results/ is what its records and ledgers say."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpft import runs
from dpft.cli.app import app
from dpft.config.published import is_other_size, with_part_labels
from dpft.config.schema import audit_of
from dpft.privacy.accounting import epsilon_rdp
from dpft.report.comparison import as_markdown, row

ROOT = Path(__file__).resolve().parents[1]
RESULTS = sorted((ROOT / "results").rglob("record.json"))


def test_there_are_results():
    assert RESULTS


def test_results_are_small_enough_for_a_clone():
    files = [file for file in (ROOT / "results").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 15e6
    # Of a private run three lines are kept (scripts/collect_results.py).
    ledgers = [file for file in files if file.name == "ledger.jsonl"]
    assert max(file.read_bytes().count(b"\n") for file in ledgers) <= 3


def epsilon_of(mechanism):
    """By Renyi accounting; 0 before the first step."""
    if not mechanism["steps"]:
        return 0.0
    noise = mechanism.get("total_noise_multiplier", mechanism["noise_multiplier"])
    return epsilon_rdp(
        sampling_rate=mechanism["sampling_rate"],
        noise_multiplier=noise,
        steps=mechanism["steps"],
        delta=mechanism["delta"],
    )


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.parent.name)
def test_record_and_ledger_agree(file):
    record = runs.read_record(file)
    assert record["scores"]
    assert record["environment"]["cpu"]
    if record["mechanism"] is None:
        return
    ledger = runs.read_ledger(file.parent / "ledger.jsonl")
    assert ledger.steps_spent == record["privacy"]["steps_taken"]
    assert record["training"]["steps"] == record["mechanism"]["steps"] == ledger.next_step
    spent = ledger.entries[-1]["epsilon_rdp"] if ledger.entries else 0.0
    assert spent == pytest.approx(record["privacy"]["epsilon"]["rdp"], rel=1e-9)
    assert ledger.header["mechanism"] == record["mechanism"]
    # Neither file is believed: the epsilon follows from the mechanism.
    assert spent == pytest.approx(epsilon_of(record["mechanism"]), rel=1e-6)
    if ledger.entries:
        assert record["privacy"]["stated"] <= record["mechanism"]["target_epsilon"]


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.parent.name)
def test_records_say_what_a_run_made_now_would_say_of_its_data(file):
    """Parts of published sets, and copies of a secret, whenever the record was made."""
    record = runs.read_record(file)
    task, audit = record["config"]["task"], audit_of(record["config"])
    count = record["dataset"]["counts"]["train"] - audit.planted
    whole = task.get("limit_train") is None and task.get("synthetic") is None
    if whole and is_other_size(count, task["train_size"]):
        label = f"{count:,} training records, where the published set has {task['train_size']:,}"
        assert label in record["labels"]
    assert set(with_part_labels(record)) == set(record["labels"])
    copied = record["mechanism"] is not None and audit.secrets and audit.repetitions > 1
    caveats = record["privacy"]["caveats"]
    assert any("which epsilon does not cover" in one for one in caveats) == bool(copied)


READMES = sorted({file.parents[1] / "README.md" for file in RESULTS})


@pytest.mark.parametrize("readme", READMES, ids=lambda file: file.parent.name)
def test_tables_are_rendered_from_their_records(readme):
    paths = sorted(path.parent for path in readme.parent.glob("*/record.json"))
    table = as_markdown([row(path, runs.read_record(path)) for path in paths])
    assert table in readme.read_text()


TABLES = sorted((ROOT / "results").glob("*/table.md"))


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.parent.name)
def test_papers_tables_are_rendered_from_the_records(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    name = file.parent.name.removesuffix("-laptop").replace("-", "/", 1)
    shown = CliRunner().invoke(
        app, ["table", name, "scale=laptop", "--runs", "results", "--format", "markdown"]
    )
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == file.read_text()
