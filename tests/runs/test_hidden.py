"""Secret trials are given to no verb by name; searches pass over private folders."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.cli.train import resumed
from dpft.config.errors import ConfigError
from dpft.config.schema import Model
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.runs.hidden import check_no_trial
from tests.report.pages.example import a_selection


def test_a_trial_is_known_by_what_lies_around_it(tmp_path, monkeypatch):
    selection = a_selection(tmp_path / "one")
    check_no_trial(selection)
    check_no_trial(selection / "chosen")
    check_no_trial(selection / "chosen/private/metrics.jsonl")  # a run's own folder
    for path in ("private", "private/trials/a", "private/trials/none", "private/trials/a/model"):
        with pytest.raises(ConfigError, match="secret trials"):
            check_no_trial(selection / path)
    monkeypatch.chdir(selection / "private/trials/a")
    with pytest.raises(ConfigError, match="secret trials"):
        check_no_trial(Path("model/.."))
    (tmp_path / "link").symlink_to(selection / "private/trials/a")
    with pytest.raises(ConfigError, match="secret trials"):
        check_no_trial(tmp_path / "link")


@pytest.mark.parametrize(
    "words",
    [
        ("report", "RUN"),
        ("report", "RUN/record.json"),
        ("table", "--runs", "RUN"),
        ("figure", "--runs", "RUN"),
        ("claims", "--runs", "RUN"),
        ("decode", "RUN"),
        ("sweep", "--watch", "RUN"),
        ("score", "RUN"),
        ("generate", "RUN", "n=1", "sources=sample"),
    ],
    ids=" ".join,
)
def test_every_verb_that_reads_runs_refuses_a_trial(tmp_path, words):
    trial = a_selection(tmp_path / "one") / "private/trials/a"
    before = sorted(tmp_path.rglob("*"))
    typed = [str(trial) + w[3:] if w.startswith("RUN") else w for w in words]
    result = CliRunner().invoke(app, typed)
    assert result.exit_code == 2, result.output
    assert "secret trials of a selection" in result.output
    assert str(tmp_path / "one/chosen") in result.output
    assert sorted(tmp_path.rglob("*")) == before


def test_a_trial_is_neither_resumed_nor_trained_further(tmp_path):
    trial = a_selection(tmp_path / "one") / "private/trials/a"
    with pytest.raises(ConfigError, match="secret trials"):
        resumed({"resume": str(trial)}, ["resume=x"])
    with pytest.raises(ConfigError, match="secret trials"):
        load_model(Model("custom", str(trial / "model")), Needs("causal"), seed=0)
