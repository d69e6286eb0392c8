import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from dpft.runs import (
    SCHEMA_VERSION,
    RecordError,
    RunDirectory,
    code_version,
    environment,
    read_record,
    update_record,
    write_record,
)
from tests.runs.example import example_record


@pytest.fixture
def record(run: RunDirectory) -> dict[str, Any]:
    return example_record(config_hash=run.config_hash)


def test_what_is_written_is_read(run: RunDirectory, record: dict[str, Any]) -> None:
    write_record(run, record)
    assert read_record(run.path) == read_record(run.record)
    expected = {**record, "schema_version": SCHEMA_VERSION, "nulls": {}}
    assert read_record(run.path) == json.loads(json.dumps(expected))


def test_numbers_that_json_lacks_become_null_with_the_reason(
    run: RunDirectory, record: dict[str, Any]
) -> None:
    record["privacy"]["epsilon"]["rdp"] = float("inf")
    record["scores"]["test"]["metrics"]["BLEU"] = float("nan")
    write_record(run, record)
    reasons = {"privacy.epsilon.rdp": "inf", "scores.test.metrics.BLEU": "nan"}
    assert "NaN" not in run.record.read_text()
    assert read_record(run.path)["privacy"]["epsilon"]["rdp"] is None
    assert read_record(run.path)["nulls"] == reasons
    scores = {"test": {"metrics": {"BLEU": 60.0}, "examples": 9, "signature": "s"}}
    updated = update_record(run, stage="scored", scores=scores)
    assert updated["nulls"] == {"privacy.epsilon.rdp": "inf"}


def test_scores_of_another_split_are_added(run: RunDirectory, record: dict[str, Any]) -> None:
    write_record(run, record)
    valid = {"metrics": {"BLEU": 61.0}, "examples": 9, "signature": "s"}
    assert update_record(run, scores={"valid": valid})["scores"].keys() == {"test", "valid"}


def test_scores_of_a_part_of_a_published_split_are_labelled(
    run: RunDirectory, record: dict[str, Any]
) -> None:
    write_record(run, record)
    assert update_record(run, scores=record["scores"])["labels"] == ["subset"]

    def of(examples: int) -> dict[str, Any]:
        return {"dev": {"metrics": {"BLEU": 0.5}, "examples": examples, "signature": "x"}}

    label = "100 scored instances of dev, where the published split has 547"
    assert update_record(run, scores=of(100))["labels"] == ["subset", label]
    assert update_record(run, stage="scored")["labels"] == ["subset", label]
    assert update_record(run, scores=of(547))["labels"] == ["subset"]  # scored again, of all


@pytest.mark.parametrize(
    ("task", "source"),
    [
        ({"name": "mnli", "limit_eval": 100}, "files"),  # which has a label of its own
        ({"name": "mnli"}, "sample"),
        ({"name": "text2text"}, "files"),
    ],
)
def test_what_is_limited_generated_or_unpublished_gets_no_label_of_its_size(
    run: RunDirectory, record: dict[str, Any], task: dict[str, Any], source: str
) -> None:
    record["config"]["task"], record["dataset"]["source"] = task, source
    write_record(run, record)
    scores = {"dev": {"metrics": {"accuracy": 0.5}, "examples": 100, "signature": "x"}}
    assert update_record(run, scores=scores)["labels"] == ["subset"]


def test_missing_and_unknown_sections_are_named(run: RunDirectory, record: dict[str, Any]) -> None:
    del record["dataset"]
    record["extra"] = 1
    with pytest.raises(RecordError, match=r"lacks \['dataset'\] and has unknown \['extra'\]"):
        write_record(run, record)


def test_a_record_of_another_run_is_refused(run: RunDirectory) -> None:
    with pytest.raises(RecordError, match="record of run 000000000000"):
        write_record(run, example_record(config_hash="000000000000"))


@pytest.mark.parametrize("name", ["loss", "gradient_norm", "clipped_fraction"])
def test_training_statistics_are_refused(
    run: RunDirectory, record: dict[str, Any], name: str
) -> None:
    record["training"][name] = 1.0
    with pytest.raises(RecordError, match=rf"training\.{name}, computed from private data"):
        write_record(run, record)


def test_what_is_no_plain_data_is_refused(run: RunDirectory, record: dict[str, Any]) -> None:
    record["labels"] = {"a", "b"}
    with pytest.raises(RecordError, match="expected plain numbers"):
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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "schema version None"),
        ('{"schema_version": 99}', "schema version 99; this dpft reads version 2"),
    ],
)
def test_what_cannot_be_read_is_explained(run: RunDirectory, text: str, reason: str) -> None:
    run.record.write_text(text)
    with pytest.raises(RecordError, match=reason):
        read_record(run.path)


def test_a_run_without_record_is_explained(run: RunDirectory) -> None:
    with pytest.raises(RecordError, match="expected a run that was trained"):
        read_record(run.path)


@pytest.fixture
def fake_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``git`` that answers as told, so that no test depends on the checkout it lies in."""
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        "shift\n"  # --no-optional-locks
        'case "$1" in ls-files) exit ${TRACKED};; rev-parse) echo abc123;; '
        'status) printf "%s" "${CHANGES}";; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


@pytest.mark.parametrize(
    ("tracked", "changes", "commit", "dirty"),
    [("0", "", "abc123", False), ("0", " M x.py", "abc123", True), ("1", "", None, None)],
)
def test_the_code_version_tells_commit_and_changes(
    fake_git: Path,
    monkeypatch: pytest.MonkeyPatch,
    tracked: str,
    changes: str,
    commit: str | None,
    dirty: bool | None,
) -> None:
    monkeypatch.setenv("TRACKED", tracked)
    monkeypatch.setenv("CHANGES", changes)
    version = code_version()
    assert (version["commit"], version["dirty"]) == (commit, dirty)


def test_without_git_the_environment_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = environment()
    assert facts["dpft"]["commit"] is None
    assert facts["packages"]["torch"]
    assert facts["cores"] >= 1
    assert facts["ram_bytes"] > 0
    json.dumps(facts, allow_nan=False)


def test_a_missing_folder_is_no_reason_to_fail(tmp_path: Path) -> None:
    assert code_version(tmp_path / "gone")["commit"] is None
