"""Audited runs: a right one passes, one that breaks its promise is caught."""

from __future__ import annotations

import json

import pytest

from dpft.audit.canaries import Canaries
from dpft.cli.train import execute
from dpft.config.compose import compose
from dpft.config.errors import AuditError, ConfigError
from dpft.config.flags import sentences
from dpft.config.schema import parse
from dpft.privacy import Mechanism, keys
from dpft.runs import CheckpointError
from dpft.training.run import run_experiment
from tests.small_runs import settings, trained

SMALL = ["task.source=sample", "task.limit_train=64", "task.limit_eval=2", "optim.batch_size=64"]
SMALL += ["optim.steps=12", "privacy.delta=1e-4", "privacy.noise_seed=5", "eps=1", "threads=1"]
SMALL += ["decode=greedy", "decode.max_new_tokens=5"]
# Nothing here depends on what the model knows.
BOUND = ["audit=bound", "audit.gradients=300", "task.limit_train=300", "model=random-gpt2"]
pytestmark = pytest.mark.usefixtures("quick_scores")


def config(tmp_path, *overrides):
    return compose([*SMALL, f"runs_dir={tmp_path}", *overrides])


def test_a_right_run_is_not_refuted(tmp_path):
    outcome = run_experiment(parse(config(tmp_path, "clip=per_layer_adaptive", *BOUND)))
    audit, record = outcome.record["audit"], outcome.record

    assert not audit["refuted"]
    assert audit["epsilon_lower"] <= record["privacy"]["epsilon"]["rdp"]
    assert audit["canaries"] == 300
    # Slots are sampled as records are; what is counted as data are the records.
    assert record["mechanism"]["dataset_size"] == 600
    assert record["dataset"]["counts"] == {"train": 300}
    caveats = "\n".join(record["privacy"]["caveats"])
    assert "no epsilon covers them" in caveats
    assert "300 canaries, each in or out by a coin, for an audit" in sentences(record["flags"])
    assert "audit of this run" in (outcome.path / "model/README.md").read_text()


def test_noise_that_is_left_out_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(Mechanism, "noise_stds", lambda self, given: (0.0,) * len(given))
    with pytest.raises(AuditError, match="refutes"):
        execute(config(tmp_path, "name=broken", *BOUND))
    card = (tmp_path / "broken/model/README.md").read_text()
    assert "refutes the guarantee" in card


def test_noise_that_is_the_same_at_every_step_is_caught(tmp_path, monkeypatch):
    """In the sum of what was released it grows as a canary does; it has no part in the range."""
    right = keys.derive

    def repeated(key, *path):
        return right(
            key, *(0 if isinstance(part, int) and path[0] == "noise" else part for part in path)
        )

    monkeypatch.setattr("dpft.privacy.noise.keys.derive", repeated)
    audit = run_experiment(parse(config(tmp_path, *BOUND))).record["audit"]

    assert audit["refuted"], audit
    assert audit["score"] == "range"


def test_an_audit_goes_on_after_a_kill(tmp_path, monkeypatch):
    words = ["audit=bound", "audit.gradients=30", "optim.steps=4"]
    words += ["task.limit_train=64", "checkpoint_every=1", "privacy.noise_seed=5"]
    whole, killed = (settings(tmp_path, *words, f"name={name}") for name in ("whole", "killed"))
    expected = trained(whole).auditor.state()
    observe, steps = Canaries.observe, []

    def stop(self):
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        observe(self)

    monkeypatch.setattr(Canaries, "observe", stop)
    with pytest.raises(KeyboardInterrupt):
        trained(killed)
    monkeypatch.setattr(Canaries, "observe", observe)
    checkpoints = sorted((tmp_path / "killed/checkpoints").iterdir())
    for folder in checkpoints:
        # A release less a score is a noiseless sum: a checkpoint has no score.
        state = json.loads((folder / "manifest.json").read_text())["state"]
        assert set(state) == {"data", "model", "optimizer", "seconds"}
    scores = tmp_path / f"killed/private/audit/{checkpoints[-1].name}.json"
    scores.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="Put the file back"):
        trained(killed)
    (tmp_path / "elsewhere").rename(scores)
    assert trained(killed).auditor.state() == expected


def test_secrets_that_are_repeated_are_learnt_without_privacy(tmp_path):
    overrides = ["audit=canary", "audit.secrets=3", "audit.repetitions=20", "audit.candidates=200"]
    overrides += ["task.limit_train=60"]
    trained = run_experiment(
        parse(config(tmp_path, "clip=none", "optim.lr=1e-2", "optim.steps=16", *overrides))
    ).record
    untrained = run_experiment(parse(config(tmp_path, "optim.steps=0", *overrides))).record

    exposures = [r["scores"]["canaries"]["metrics"]["exposure"] for r in (trained, untrained)]
    assert exposures[0] > exposures[1] + 3
    assert trained["dataset"]["counts"] == {"train": 60 + 60}
    assert "3 canary texts in the training data, 20 times each" in sentences(trained["flags"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["clip=none", "audit=bound"], "guarantees nothing"),
        (["sampling=shuffle", "audit=bound"], "sampling=poisson"),
        (["audit=bound"], "expected at most one for each of 64 training records"),
        (["task=sst2", "task.source=sample", "model=random-bert", "audit=canary"], "writes no"),
    ],
)
def test_audits_that_mean_nothing_are_refused(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        run_experiment(parse(config(tmp_path, *overrides)))
    assert not list(tmp_path.iterdir())
