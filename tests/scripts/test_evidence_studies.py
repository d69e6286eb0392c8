"""Studies: lines that dpft would run, rates that the trials decide, and what the runs say."""

import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.reproduce.claims.comparison import Outcome
from tests.report.pages.example import record as whole

FILE = Path(__file__).parents[2] / "scripts" / "evidence_studies.py"


@pytest.fixture(scope="module")
def studies():
    spec = importlib.util.spec_from_file_location("evidence_studies", FILE)
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(spec.name)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]
    if before is not None:
        sys.modules[spec.name] = before


@pytest.fixture
def study(studies):
    return studies.Study(
        *("a", "size", "which?", "task=e2e", {"one row": "", "y": "", "z": ""}),
        rates=("optim.lr=1", "optim.lr=2"),
    )


@pytest.mark.slow
def test_every_row_is_a_run_that_dpft_would_make(studies, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = []
    for study in studies.STUDIES:
        short = replace(study, rates=study.rates[:2], seeds=(1,))
        rates = {row: next(iter(named), "") for row, named in studies.trials(study).items()}
        points = studies.finals(short, rates) | dict(list(studies.pilots(short).items())[:1])
        lines += [f"{settings} name={name}" for name, settings in points.items()]
    Path("list.txt").write_text("\n".join(lines))
    shown = CliRunner().invoke(app, ["sweep", "--list", "list.txt", "--dry-run"])
    assert shown.exit_code == 0, shown.output
    merged = re.search(r"merged (\d+) points", shown.output)  # where two studies share a run
    points = len(lines) - (int(merged[1]) if merged else 0)
    assert f"{points} points" in shown.output


def scored(folder, split, value, **config):
    """A record with a BLEU score."""
    record = whole(private=False)
    record["scores"] = {split: {"metrics": {"BLEU": value}, "examples": 630, "signature": "s"}}
    record["config"] = {**record["config"], **config}
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(record))
    (folder / "DONE").touch()


def test_the_best_trial_on_dev_decides_each_rows_rate(studies, study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for rates, row in (((0.3, 0.4), "one-row"), ((0.4, 0.3), "y"), ((0.1, 0.2), "z")):
        for rate, value in enumerate(rates, 1):
            scored(Path("runs", f"size-{row}-pilot-{rate}"), "dev", value)
    assert studies.best(study) == {"one row": "optim.lr=2", "y": "optim.lr=1", "z": "optim.lr=2"}
    runs = studies.finals(study, studies.best(study))
    assert runs["size-one-row-s3"].split() == ["task=e2e", "optim.lr=2", "seed=3"]
    assert len(runs) == 9


def test_a_row_that_names_its_rate_has_no_trials(studies, study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = replace(study, rows={"one row": "", "y at 3": "optim.lr=3"})
    assert [*studies.pilots(own)] == ["size-one-row-pilot-1", "size-one-row-pilot-2"]
    for name in studies.pilots(own):
        scored(Path("runs", name), "dev", 0.3)
    runs = studies.finals(own, studies.best(own))
    assert runs["size-y-at-3-s1"].split() == ["task=e2e", "optim.lr=3", "seed=1"]


def test_nothing_counts_before_all_trials_are_there(studies, study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begun = []
    monkeypatch.setattr(studies.subprocess, "run", lambda command, **_: begun.append(command[-1]))
    assert not studies.make(study)
    assert begun == ["runs/size-pilot.txt"]


def test_what_was_committed_is_not_made_again(studies, study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(studies, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(studies, "STUDIES", (study,))
    for name in studies.pilots(study):
        scored(Path("results/study-size", name), "dev", 0.3)
    begun = []
    monkeypatch.setattr(studies.subprocess, "run", lambda command, **_: begun.append(command[-1]))
    assert not studies.make(study)
    assert begun == ["runs/size.txt"]
    assert len(Path("runs/size.txt").read_text().splitlines()) == 9


@pytest.fixture
def folder(studies, study, tmp_path):
    """Three seeds of two rows; of the third row one seed; trials of the first."""
    scores = {"one row": (0.50, 0.52, 0.54), "y": (0.40, 0.43, 0.43), "z": (0.49,)}
    for row, values in scores.items():
        for seed, value in enumerate(values, 1):
            scored(
                tmp_path / studies.label(study, row, f"s{seed}"), "test", value, optim={"lr": 2.0}
            )
    scored(tmp_path / "size-one-row-pilot-1", "dev", 0.41)
    scored(tmp_path / "size-one-row-pilot-2", "dev", 0.42)
    return tmp_path


def test_the_first_row_is_compared_with_each_other_one(studies, study, folder):
    first, second = studies.compared(study, folder)
    assert first.what == "one row against y"
    assert first.numbers["ahead"] == pytest.approx(10.0)  # of 10, 9 and 11
    assert first.numbers["high"] - first.numbers["low"] == pytest.approx(2 * 4.3027 / 3**0.5, 1e-4)
    assert first.outcome is Outcome.HOLDS
    assert second.paired is None  # one seed in common
    assert studies.compared(replace(study, rows={"other": ""}), folder) == []


def test_the_verdict_names_what_was_told_apart(studies, study, folder):
    said = studies.verdict(study, folder)
    assert said == ("one row (BLEU 52.00): ahead of y (42.00), z (49.00, by a margin, of one seed)")


def test_the_table_has_trials_means_and_errors(studies, study, folder):
    lines = studies.table(study, folder).splitlines()[2:]
    assert lines[0] == "| one row | 1: 41.00, 2: 42.00 | 2 | 52.00 | 1.15 | 3 | - |"
    assert lines[1].startswith("| y | - | 2 | 42.00 | 1.00 | 3 | 52.00 and 42.00: +10.00, 95% ")
    assert lines[2].startswith("| z | - | 2 | 49.00 | - | 1 | 52.00 and 49.00: +3.00 (1 seed in")
