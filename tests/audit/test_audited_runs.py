"""Audited runs: a right one passes, one that breaks its promise is caught."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpft.audit.canaries import Canaries
from dpft.audit.stage import Auditor
from dpft.cli.train import execute
from dpft.config.compose import compose
from dpft.config.errors import AuditError, ConfigError
from dpft.config.flags import sentences
from dpft.config.schema import parse
from dpft.privacy import Mechanism, keys
from dpft.runs import CheckpointError
from dpft.training.run import run_experiment
from tests.small_runs import settings, trained

SMALL = [
    "task.source=sample",
    "task.limit_train=64",
    "task.limit_eval=2",
    "optim.batch_size=64",
    "optim.steps=12",
    "privacy.delta=1e-4",
    "privacy.noise_seed=5",
    "eps=1",
    "decode=greedy",
    "decode.max_new_tokens=5",
    "threads=1",
]
# Nothing here depends on what the model knows.
BOUND = ["audit=bound", "audit.gradients=300", "model=random-gpt2"]


pytestmark = pytest.mark.usefixtures("quick_scores")


def config(tmp_path, *overrides):
    return compose([*SMALL, f"runs_dir={tmp_path}", *overrides])


def test_a_right_run_is_not_refuted(tmp_path):
    outcome = run_experiment(parse(config(tmp_path, "clip=per_layer_adaptive", *BOUND)))
    audit, record = outcome.record["audit"], outcome.record

    assert not audit["refuted"]
    assert audit["epsilon_lower"] <= record["privacy"]["epsilon"]["rdp"]
    assert audit["parts"]["gradients"]["canaries"] == 300
    # Slots are sampled as records are; what is counted as data are the records.
    assert record["mechanism"]["dataset_size"] == 364
    assert record["dataset"]["counts"] == {"train": 64}
    caveats = "\n".join(record["privacy"]["caveats"])
    assert "no epsilon covers them" in caveats
    assert "300 canaries, each in or out by a coin, for an audit" in sentences(record["flags"])
    assert "audit of this run" in (outcome.path / "model/README.md").read_text()


def test_noise_that_is_left_out_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(
        Mechanism, "noise_stds", lambda self, thresholds: (0.0,) * len(self.thresholds)
    )
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
    assert audit["parts"]["gradients"]["score"] == "range"


def test_clipping_that_is_left_out_is_caught(tmp_path, monkeypatch):
    """Every record counts in full, whatever its norm: what is released shows them."""
    overrides = ["audit=bound", "audit.gradients=0", "audit.records=60", "eps=0.3"]
    overrides += ["model=random-gpt2", "task=language_modeling", "task.max_length=24"]
    overrides += ["task.limit_train=8", "optim.batch_size=40", "optim.steps=8"]
    right = run_experiment(parse(config(tmp_path, "name=right", *overrides))).record["audit"]
    whole = {"abadi": lambda norms, threshold: norms * 0 + 1}
    monkeypatch.setattr("dpft.privacy.styles.CLIP_FUNCTIONS", whole)
    broken = run_experiment(parse(config(tmp_path, "name=broken", *overrides))).record["audit"]

    assert not right["refuted"], right
    assert broken["refuted"], broken


def test_an_audit_goes_on_after_a_kill(tmp_path, monkeypatch):
    words = ["audit=bound", "audit.gradients=30", "audit.records=4", "optim.steps=4"]
    words += ["task.limit_train=64", "checkpoint_every=1", "privacy.noise_seed=5"]
    whole, killed = (settings(tmp_path, *words, f"name={name}") for name in ("whole", "killed"))
    expected = trained(whole).auditor.state()
    observe, steps = Auditor.observe, []

    def stop(self):
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        observe(self)

    monkeypatch.setattr(Auditor, "observe", stop)
    with pytest.raises(KeyboardInterrupt):
        trained(killed)
    monkeypatch.setattr(Auditor, "observe", observe)
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


class Idle(Canaries):
    """Canaries that are never inserted."""

    def __init__(self, count):
        super().__init__(count, np.random.default_rng(0))

    def insert(self, slots):
        pass

    def observe(self):
        pass


def test_kinds_share_the_confidence_and_the_largest_bound_counts(monkeypatch):
    """With the whole confidence each, one of two would be too high twice as often as is said."""
    epsilons = iter((1.0, 2.0) * 2)

    def stand_in(scores, included, claim, *, confidence):
        return {"epsilon": next(epsilons), "confidence": confidence}

    monkeypatch.setattr("dpft.audit.stage.lower_bound", stand_in)
    auditor = Auditor({"one": Idle(3), "other": Idle(2)})
    mechanism = Mechanism(100, 10, 5, 1.0, (1.0,), 1e-3)
    refuted, allowed = (
        auditor.result(mechanism, confidence=0.95, epsilon=epsilon) for epsilon in (1.5, 2.0)
    )

    assert (refuted["refuted"], allowed["refuted"]) == (True, False)
    assert refuted["epsilon_lower"] == 2.0
    assert refuted["confidence"] == 0.95
    assert [part["confidence"] for part in refuted["parts"].values()] == pytest.approx([0.975] * 2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["clip=none", "audit=bound"], "guarantees nothing"),
        (["sampling=shuffle", "audit=bound"], "sampling=poisson"),
        (["task=sst2", "task.source=sample", "model=random-bert", "audit=canary"], "writes no"),
        (["audit=bound", "audit.records=10", "precision=bfloat16"], "rounds the slopes"),
        (["audit=bound", "audit.records=10", "adapt=rgp"], "does not change with the carriers"),
        (
            ["audit=bound", "audit.records=10", "task=cifar10", "model=random-wrn"],
            r"Conv2d.*audit.records=0",
        ),
    ],
)
def test_audits_that_mean_nothing_are_refused(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        run_experiment(parse(config(tmp_path, *overrides)))
    assert not list(tmp_path.iterdir())
