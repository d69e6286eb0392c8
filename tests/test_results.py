"""The pages under results/ agree with their records."""

from pathlib import Path

import pytest

from dpft.config.flags import Flag, flag
from dpft.config.published import is_other_size, with_part_flags
from dpft.config.schema import Audit, build
from dpft.privacy.accounting import rdp_curve, spent
from dpft.report.comparison import as_markdown, row
from dpft.runs.record import check_record, read_table
from scripts.utility_figure import csv, points

RESULTS = Path(__file__).resolve().parents[1] / "results"
COLLECTED = read_table(RESULTS)


def test_results_are_few_and_small_enough_for_a_clone():
    files = [file for file in RESULTS.rglob("*") if file.is_file()]
    assert len(files) <= 200
    assert sum(file.stat().st_size for file in files) < 6e6


def check_guarantee(record):
    """Its epsilon follows from its mechanism."""
    mechanism, privacy = record["mechanism"], record["privacy"]
    assert record["training"]["steps"] == mechanism["steps"]
    epsilon = rdp_curve(**spent(mechanism)).epsilon(privacy["steps_taken"], mechanism["delta"])
    assert privacy["epsilon"]["rdp"] == pytest.approx(epsilon, rel=1e-6)
    assert privacy["stated"] <= mechanism["target_epsilon"]


def check_flags(record):
    """Parts of published sets, and copies of a secret, are named whenever the record was made."""
    task = record["config"]["task"]
    audit = build(Audit, record["config"].get("audit", {}), "audit")
    count = record["dataset"]["counts"]["train"] - audit.planted
    whole = task.get("limit_train") is None and task.get("synthetic") is None
    if whole and is_other_size(count, task["train_size"]):
        assert flag(Flag.TRAIN_SIZE, size=count, published=task["train_size"]) in record["flags"]
    found, flags = with_part_flags(record), record["flags"]
    assert all(one in flags for one in found)
    assert all(one in found for one in flags)
    copied = record["mechanism"] is not None and audit.secrets and audit.repetitions > 1
    caveats = record["privacy"]["caveats"]
    assert any("which epsilon does not cover" in one for one in caveats) == bool(copied)


def test_records_and_pages_agree():
    groups = {}
    for path, held in COLLECTED.items():
        record = check_record(held, Path(path))
        groups.setdefault(Path(path).parent, []).append(row(Path(path), record))
        assert record["scores"], path
        assert record["environment"]["cpu"], path
        if record["mechanism"] is not None and record["privacy"]["steps_taken"]:
            check_guarantee(record)
        check_flags(record)
    assert len(COLLECTED) > 400
    for group, rows in groups.items():
        page = RESULTS / group / "README.md"
        if page.is_file():
            assert as_markdown(rows) in page.read_text(), group


def test_the_readmes_chart_has_the_numbers_of_the_records():
    drawn = points()
    assert csv(drawn) == (RESULTS / "figures/utility.csv").read_text()
    assert all(any(point.epsilon is None for point in panel) for panel in drawn)
