"""What makes the steps of a run private and safe to kill: randomness, ledger, log, resumption."""

import json
import os
import signal
from contextlib import nullcontext

import pytest
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpft import runs
from dpft.config.errors import ConfigError, DivergedError, ModelError
from dpft.parallel.cohort import TrainingCohort
from dpft.privacy.noise import GaussianNoise
from dpft.runs.folders import run_path
from dpft.training.session import Session
from tests.small_runs import ready, settings, trained


def losses_of(run):
    """Noiseless, as the private log holds them."""
    lines = (run_path(run) / "private/metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.mark.parametrize(("dropout", "equal"), [(0.3, False), (0.0, True)])
def test_dropout_masks_follow_from_the_secret_key(tmp_path, dropout, equal):
    """All records are in the batch of the first step: nothing else in its loss is random."""
    words = [f"model.dropout={dropout}", "optim.batch_size=12", "optim.steps=1"]
    one, other = (settings(tmp_path, *words, f"name={name}") for name in ("one", "other"))
    trained(one)
    trained(other)
    assert (losses_of(one) == losses_of(other)) is equal


def test_each_step_is_durable_in_the_ledger_before_the_weights_move(tmp_path, monkeypatch):
    run = settings(tmp_path, "optim.steps=3")
    ledger = run_path(run) / "ledger.jsonl"
    durable, moved = [0], []

    def synced(sync):
        def observed(descriptor):
            sync(descriptor)
            if ledger.exists() and os.path.sameopenfile(descriptor, opened(ledger)):
                durable.append(len(ledger.read_bytes().splitlines()) - 1)

        return observed

    held = []

    def opened(path):
        held.append(os.open(path, os.O_RDONLY))
        return held[-1]

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, synced(getattr(os, name)))
    hook = register_optimizer_step_pre_hook(lambda *_: moved.append(durable[-1]))
    try:
        trained(run)
    finally:
        hook.remove()
        for descriptor in held:
            os.close(descriptor)
    assert moved == [1, 2, 3]


@pytest.mark.parametrize(
    ("clip", "error", "message"),
    [
        ("none", ConfigError, "the data is not what .* began with"),
        ("bk", runs.LedgerMismatchError, "\n  data: "),
    ],
)
def test_a_run_does_not_go_on_with_other_records(tmp_path, clip, error, message):
    """Its files changed meanwhile, by one label; the settings still name the same place."""
    for split, places in (("train", range(12)), ("test", [12])):
        lines = [json.dumps({"text": f"text {n}", "label": "ab"[n % 2]}) for n in places]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    run = settings(
        tmp_path,
        *("task=classification", "task.source=files", "task.limit_train=null", f"clip={clip}"),
        *(f"task.{split}_file={tmp_path / f'{split}.jsonl'}" for split in ("train", "test")),
        *("task.text_column=text", "task.label_column=label"),
        "task.classes=[a,b]",
    )
    trained(run)
    trained(run)  # the same records are no reason to stop
    file = tmp_path / "train.jsonl"
    file.write_text(file.read_text().replace('"text 3", "label": "b"', '"text 3", "label": "a"'))
    with pytest.raises(error, match=message):
        trained(run)


def test_checkpoints_are_kept_as_often_as_asked_and_at_the_end(tmp_path, monkeypatch, capsys):
    save, steps = runs.checkpoint.save, []
    monkeypatch.setattr(
        runs.checkpoint,
        "save",
        lambda run, step, *rest: (steps.append(step), save(run, step, *rest)),
    )
    run = settings(tmp_path, "optim.steps=5", "checkpoint_every=2")
    trained(run)
    assert steps == [2, 4, 5]
    assert "step 5/5 eps" in " ".join(capsys.readouterr().err.split())
    trained(run)
    assert steps == [2, 4, 5]
    said = " ".join(capsys.readouterr().err.split())
    assert "continuing" in said
    assert "at step 5 of 5" in said


def test_frozen_parameters_are_checked_before_anything_is_saved(tmp_path, monkeypatch):
    def write(self, *rest):
        next(self.prepared.parts.loaded.model.parameters()).data.view(-1)[0] += 1
        return spend(self, *rest)

    spend = Session._spend
    run = settings(tmp_path, "optim.steps=2", "adapt=bias")
    monkeypatch.setattr(Session, "_spend", write)
    with pytest.raises(ModelError, match=r"writes to .*, which is not trained"):
        trained(run)
    assert not list((run_path(run) / "checkpoints").iterdir())


@pytest.mark.parametrize("divided", [False, True])
def test_a_model_without_a_finite_loss_ends_the_run(tmp_path, divided):
    """One that ranks have divided ends it when it is put together."""
    cohort = TrainingCohort()
    cohort.divided = divided
    run = settings(tmp_path, "optim.lr=1e20", "optim.steps=1")
    with ready(run, cohort) as (prepared, _, _), Session(prepared) as session:
        with nullcontext() if divided else pytest.raises(DivergedError):
            session.train()
        with pytest.raises(DivergedError) if divided else nullcontext():
            session.whole_model()


STOPPED = ("optim.steps=4", "privacy.noise_seed=1", "clip=per_layer_adaptive")


def final(run):
    """The last checkpoint's tensors and thresholds, and what the ledger says of each step."""
    folder = run_path(run)
    (part,) = (folder / "checkpoints/step-00000004").glob("part-*")
    manifest = json.loads((folder / "checkpoints/step-00000004/manifest.json").read_text())
    digests = [entry["update"] for entry in runs.read_ledger(folder / "ledger.jsonl").entries]
    return part.read_bytes(), manifest["state"]["estimates"], digests


@pytest.fixture(scope="module")
def unstopped(tmp_path_factory):
    run = settings(tmp_path_factory.mktemp("unstopped"), *STOPPED)
    trained(run)
    return final(run)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped_ends_its_step_and_saves(tmp_path, monkeypatch, unstopped, number):
    """The signal comes in the second step, when thresholds have moved and weights have not."""
    before = signal.signal(number, lambda *given: signal.default_int_handler(*given))
    run, calls, usual = settings(tmp_path, *STOPPED), 0, GaussianNoise.privatise_

    def interrupted(*given):
        nonlocal calls
        calls += 1
        done = usual(*given)
        if calls == 2:
            os.kill(os.getpid(), number)
        return done

    try:
        with monkeypatch.context() as patch:
            patch.setattr(GaussianNoise, "privatise_", interrupted)
            with pytest.raises(KeyboardInterrupt) as stopped:
                trained(run)
    finally:
        signal.signal(number, before)
    assert stopped.value.__notes__ == ["step 2 of 4 is saved"]
    assert [path.name for path in (run_path(run) / "checkpoints").iterdir()] == ["step-00000002"]
    trained(run)
    assert final(run) == unstopped


def test_time_and_thresholds_continue_from_the_checkpoint(tmp_path):
    run = settings(tmp_path, "clip=per_layer_adaptive", "checkpoint_every=1")
    with ready(run) as (prepared, _, _):
        with Session(prepared) as session:
            session.train()
        first, seconds = prepared.parts.clipper.policy.estimates, session.seconds
        assert len(set(first)) > 1
    with ready(run) as (prepared, _, _):
        assert prepared.parts.clipper.policy.estimates != first
        with Session(prepared) as session:
            assert session.seconds == pytest.approx(seconds)
        assert prepared.parts.clipper.policy.estimates == first
