"""A sweep that would choose by test scores says so, and one that only compares does not."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from dpft.cli import sweep
from dpft.cli.app import app
from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.sweep.splits import remark


def runs(*points):
    return [parse(compose(["task=e2e", *point.split()])) for point in points]


def test_settings_that_differ_and_are_scored_on_test_are_named():
    text = remark(runs("optim.lr=1e-3", "optim.lr=2e-3 optim.epochs=5"))
    assert text is not None
    assert text.startswith("The runs differ in optim.lr, optim.epochs and are scored on the test")
    assert "decode.split=dev" in text


def test_many_settings_are_counted():
    points = runs("adapt=full", "adapt=lora optim.lr=1e-3 optim.epochs=5 clip.threshold=1")
    text = remark(points)
    assert text is not None
    assert " more and are scored" in text


@pytest.mark.parametrize(
    "points",
    [
        ("seed=1", "seed=2"),
        ("eps=3", "eps=8"),
        ("model=gpt2", "model=tiny"),
        ("optim.lr=1e-3 decode.split=dev", "optim.lr=2e-3 decode.split=dev"),
        ("task=dart optim.lr=1e-3", "task=e2e optim.lr=2e-3"),
        ("task=sst2 model=roberta-base optim.lr=1e-3", "task=sst2 model=roberta-base"),
        ("optim.lr=1e-3",),
    ],
)
def test_comparisons_and_choices_on_dev_pass_without_a_word(points):
    assert remark(runs(*points)) is None


def test_a_sweeper_chooses_whatever_it_sweeps():
    on_test, on_dev = runs("decode.split=test", "decode.split=dev")
    assert "The sweeper chooses by scores on the test split" in str(remark((), on_test))
    assert remark((), on_dev) is None


def test_the_command_says_it_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid = ["sweep", "task=e2e", "optim.lr=1e-3,2e-3", "--dry-run"]
    said = CliRunner().invoke(app, grid)
    assert said.exit_code == 0, said.output
    assert "The runs differ in optim.lr and are scored on the test split" in said.stderr
    silent = CliRunner().invoke(app, [*grid, "decode.split=dev"])
    assert silent.exit_code == 0, silent.output
    assert "test split" not in silent.output


@pytest.mark.parametrize(
    ("options", "says"), [({}, True), ({"chooses": False}, False), ({"secret": True}, False)]
)
def test_tables_choose_nothing_and_secret_trials_are_not_told(
    tmp_path, monkeypatch, capsys, options, says
):
    monkeypatch.chdir(tmp_path)
    sweep.run_sweep(["task=e2e", "optim.lr=1e-3,2e-3"], dry_run=True, **options)
    assert ("on the test split" in capsys.readouterr().err) == says
