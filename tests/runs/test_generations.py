"""A record names files of its own run and no others."""

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.report.gather import gather
from dpft.runs.errors import RecordError
from dpft.runs.generations import generations_file, generations_files
from dpft.sweep.find import find
from tests.report.pages.example import a_run, record

SECRET = '{"source": "s", "prediction": "secret", "references": ["secret"]}\n'


def test_a_file_of_the_run_is_found(tmp_path):
    a_run(tmp_path / "run")
    linked = tmp_path / "linked"
    linked.symlink_to("run")
    for run in (tmp_path / "run", linked, Path(os.path.relpath(tmp_path / "run"))):
        found = generations_files(run, {"generations": {"test": "generations/test.jsonl"}})
        assert found == {"test": run / "generations/test.jsonl"}
    assert generations_files(tmp_path / "run", {}) == {}


@pytest.fixture(params=["up", "absolute", "file link", "folder link", "private", "odd"])
def astray(tmp_path, request):
    """A run whose record leads to a secret outside of its generations."""
    secret = tmp_path / "secret" / "test.jsonl"
    secret.parent.mkdir()
    secret.write_text(SECRET)
    run, name = tmp_path / "run", "generations/test.jsonl"
    if request.param == "up":
        name = "generations/../../secret/test.jsonl"
    elif request.param == "absolute":
        name = str(secret)
    elif request.param == "private":
        name = "private/test.jsonl"
    a_run(run, record(generations=["x"] if request.param == "odd" else {"test": name}))
    if request.param == "file link":
        (run / name).unlink()
        (run / name).symlink_to(secret)
    elif request.param == "folder link":
        shutil.rmtree(run / "generations")
        (run / "generations").symlink_to(secret.parent)
    elif request.param == "private":
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(SECRET)
    return run


def test_a_file_elsewhere_is_refused(astray):
    told = json.loads((astray / "record.json").read_text())
    with pytest.raises(RecordError, match="generations"):
        generations_files(astray, told)


def test_no_page_shows_a_file_elsewhere(astray):
    (target,) = find([astray]).targets
    gathered = gather(target, private=True, samples=5)
    assert "secret" not in str(gathered.generations)
    # Where the record names no file, the usual one is shown.
    assert gathered.generations or "which lies elsewhere" in gathered.problems[0]


def test_score_reads_no_file_elsewhere(astray):
    result = CliRunner().invoke(app, ["score", str(astray)])
    assert result.exit_code == 2
    assert "generations" in result.stderr


def test_nothing_is_written_through_a_link_out_of_the_run(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/generations").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match="by a link"):
        generations_file(tmp_path / "run", "generations/test.jsonl")
