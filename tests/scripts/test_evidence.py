"""The queue of the evidence: lines that dpft would run, and rates that the trials decide."""

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app

FILE = Path(__file__).parents[2] / "scripts" / "evidence.py"


@pytest.fixture(scope="module")
def queue():
    spec = importlib.util.spec_from_file_location("evidence", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["evidence"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_row_is_a_run_that_dpft_would_make(queue, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = []
    for study in queue.STUDIES:
        short = replace(study, rates=study.rates[:2], seeds=(1,))
        rates = dict.fromkeys(study.rows, study.rates[0] if study.rates else "")
        points = queue.finals(short, rates) | dict(list(queue.pilots(short).items())[:1])
        lines += [f"{settings} name={name}" for name, settings in points.items()]
    Path("list.txt").write_text("\n".join(lines))
    shown = CliRunner().invoke(app, ["sweep", "--list", "list.txt", "--dry-run"])
    assert shown.exit_code == 0, shown.output
    merged = re.search(r"merged (\d+) points", shown.output)  # where two studies share a run
    points = len(lines) - (int(merged[1]) if merged else 0)
    assert f"{points} points" in shown.output


def test_the_best_trial_on_dev_decides_each_rows_rate(queue, monkeypatch):
    study = queue.Study("a", "size", "task=e2e", {"x": "", "y": ""}, rates=("lr=1", "lr=2"))
    scores = {"size-x-pilot-1": 3, "size-x-pilot-2": 4, "size-y-pilot-1": 4, "size-y-pilot-2": 3}
    record = {
        name: {"scores": {"dev": {"metrics": {"BLEU": value}}}} for name, value in scores.items()
    }
    monkeypatch.setattr(queue.runs, "read_record", lambda path: record[path.name])
    assert queue.best(study) == {"x": "lr=2", "y": "lr=1"}
    runs = queue.finals(study, queue.best(study))
    assert runs["size-x-s3"].split() == ["task=e2e", "lr=2", "seed=3"]
    assert len(runs) == 6


def test_nothing_counts_before_all_trials_are_there(queue, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begun = []
    monkeypatch.setattr(queue.subprocess, "run", lambda command, **_: begun.append(command[-1]))
    study = queue.Study("a", "size", "task=e2e", rates=("lr=1", "lr=2"))
    assert not queue.make(study)
    assert begun == ["size-pilot"]
