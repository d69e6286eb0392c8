import copy
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from dpft.config.flags import Flag, flag
from dpft.runs import (
    SCHEMA_VERSION,
    RecordError,
    RunDirectory,
    read_record,
    update_record,
    write_record,
)
from dpft.runs.record import TABLE, read_table, write_table
from tests.report.pages.example import record as example


@pytest.fixture
def record(run: RunDirectory) -> dict[str, Any]:
    return example(config_hash=run.config_hash)


def test_what_is_written_is_read(run: RunDirectory, record: dict[str, Any]) -> None:
    write_record(run, record)
    assert read_record(run.path) == read_record(run.record)
    expected = {**record, "schema_version": SCHEMA_VERSION}
    assert read_record(run.path) == json.loads(json.dumps(expected))


def test_numbers_that_json_lacks_become_null(run: RunDirectory, record: dict[str, Any]) -> None:
    record["privacy"]["epsilon"]["rdp"] = float("inf")
    record["scores"]["test"]["metrics"]["BLEU"] = float("nan")
    write_record(run, record)
    assert "NaN" not in run.record.read_text()
    assert read_record(run.path)["privacy"]["epsilon"]["rdp"] is None


def test_scores_of_a_part_of_a_published_split_are_flagged(
    run: RunDirectory, record: dict[str, Any]
) -> None:
    def of(examples: int) -> dict[str, Any]:
        return {"dev": {"metrics": {"BLEU": 0.5}, "examples": examples, "signature": "x"}}

    write_record(run, record)
    part = flag(Flag.EVAL_SIZE, instances=100, split="dev", published=[547])
    assert update_record(run, scores=of(100))["flags"] == [*record["flags"], part]
    assert update_record(run, stage="scored")["flags"] == [*record["flags"], part]
    assert update_record(run, scores=of(547))["flags"] == record["flags"]  # scored again, of all


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("dataset", None),
        ("extra", 1),
        ("privacy.delta", "1e-5"),
        ("privacy.voided_by", ["nothing"]),
        ("mechanism", None),  # and yet private
        ("training.seconds", -1.0),
        ("flags", [{"flag": "limited_train"}]),  # how many?
        ("flags", ["subset"]),
    ],
)
def test_a_record_of_another_form_is_neither_written_nor_read(
    run: RunDirectory, record: dict[str, Any], place: str, value: Any
) -> None:
    write_record(run, record)
    broken = copy.deepcopy(read_record(run.path))
    *outer, last = place.split(".")
    section = broken[outer[0]] if outer else broken
    section[last] = value
    with pytest.raises(RecordError, match=place.partition("_")[0]):
        write_record(run, broken)
    run.record.write_text(json.dumps(broken))
    with pytest.raises(RecordError, match="no run record that dpft wrote"):
        read_record(run.path)


def test_a_record_of_another_run_is_refused(run: RunDirectory) -> None:
    with pytest.raises(RecordError, match="record is of run 000000000000"):
        write_record(run, example(config_hash="000000000000"))


def test_training_statistics_are_refused(run: RunDirectory, record: dict[str, Any]) -> None:
    record["training"]["loss"] = 1.0
    with pytest.raises(RecordError, match=r"training\.loss, computed from private data"):
        write_record(run, record)


def test_a_full_disk_leaves_the_old_record(
    run: RunDirectory, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_record(run, record)
    before = run.record.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match=r"No space left.*unchanged"):
        write_record(run, {**record, "stage": "scored"})
    assert run.record.read_bytes() == before
    assert not list(run.path.glob(".record*"))


def test_a_table_of_records_is_read_as_written_and_equal_ones_are_equal_bytes(
    tmp_path: Path,
) -> None:
    records = {"a/b-s1": {"é": [1.5, None]}, "a/b/c": {"z": 1}}
    assert read_table(tmp_path) == {}
    write_table(tmp_path, records)
    assert list(read_table(tmp_path)) == ["a/b/c", "a/b-s1"]  # as folders are sorted
    before = (tmp_path / TABLE).read_bytes()
    write_table(tmp_path, read_table(tmp_path))
    assert (tmp_path / TABLE).read_bytes() == before
    for damaged in (before[:-9], before[:20] + b"x" + before[21:]):
        (tmp_path / TABLE).write_bytes(damaged)
        with pytest.raises(RecordError, match="cannot be read"):
            read_table(tmp_path)
