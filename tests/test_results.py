"""What is committed under results/ is what its records and ledgers say."""

from pathlib import Path

import pytest

from dpft import runs
from dpft.config.published import is_other_size, with_part_labels
from dpft.config.schema import Audit, build
from dpft.report.comparison import as_markdown, row
from dpft.runs.collected import read_table
from dpft.runs.record import check_record

RESULTS = Path(__file__).resolve().parents[1] / "results"
COLLECTED = read_table(RESULTS)


def test_results_are_few_and_small_enough_for_a_clone():
    files = [file for file in RESULTS.rglob("*") if file.is_file()]
    assert len(files) <= 200
    assert sum(file.stat().st_size for file in files) < 6e6
    # Of a private run three lines are kept (scripts/collect_results.py).
    assert max(run.ledger.count("\n") for run in COLLECTED) == 3


def check_ledger(record, ledger):
    """That its epsilon follows from its mechanism, `read_ledger` has found."""
    assert ledger.steps_spent == record["privacy"]["steps_taken"]
    assert record["training"]["steps"] == record["mechanism"]["steps"] == ledger.next_step
    spent = ledger.entries[-1]["epsilon_rdp"] if ledger.entries else 0.0
    assert spent == pytest.approx(record["privacy"]["epsilon"]["rdp"], rel=1e-9)
    assert ledger.header["mechanism"] == record["mechanism"]
    if ledger.entries:
        assert record["privacy"]["stated"] <= record["mechanism"]["target_epsilon"]


def check_labels(record):
    """Parts of published sets, and copies of a secret, are named whenever the record was made."""
    task = record["config"]["task"]
    audit = build(Audit, record["config"].get("audit", {}), "audit")
    count = record["dataset"]["counts"]["train"] - audit.planted
    whole = task.get("limit_train") is None and task.get("synthetic") is None
    if whole and is_other_size(count, task["train_size"]):
        label = f"{count:,} training records, where the published set has {task['train_size']:,}"
        assert label in record["labels"]
    assert set(with_part_labels(record)) == set(record["labels"])
    copied = record["mechanism"] is not None and audit.secrets and audit.repetitions > 1
    caveats = record["privacy"]["caveats"]
    assert any("which epsilon does not cover" in one for one in caveats) == bool(copied)


def test_records_ledgers_and_pages_agree(tmp_path):
    groups = {}
    for run in COLLECTED:
        groups.setdefault(Path(run.path).parent, []).append(run)
        record = check_record(run.record, Path(run.path))
        assert record["scores"], run.path
        assert record["environment"]["cpu"], run.path
        assert (record["mechanism"] is None) == (not run.ledger), run.path
        if run.ledger:
            (tmp_path / "ledger.jsonl").write_text(run.ledger)
            check_ledger(record, runs.read_ledger(tmp_path / "ledger.jsonl"))
        check_labels(record)
    assert len(COLLECTED) > 400
    for group, found in groups.items():
        page = RESULTS / group / "README.md"
        if page.is_file():
            table = as_markdown([row(Path(run.path), run.record) for run in found])
            assert table in page.read_text(), group
