"""What goes on around a step of `PrivateTrainer`: callbacks, evaluation, optimizers, changes."""

import re
import shutil

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.integrations import WandbCallback
from transformers.trainer_callback import ProgressCallback

from dpft import runs
from dpft.config.errors import ConfigError, ModelError
from dpft.integrations.transformers import PrivacyArguments
from tests.integrations.test_trainer import (
    IMAGES,
    SAVED,
    Images,
    KilledError,
    StopAt,
    Texts,
    gpt2,
    llama,
    trainer_of,
    vit,
    weights,
)
from tests.small_runs import release_noise_alone

EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "dataloader_pin_memory": False}


def scored(*values):
    """Settings of evaluations with these scores, in order."""
    given = iter(values)
    return {
        **EVALUATED,
        "eval_dataset": HeldOut(),
        "compute_metrics": lambda answers: {"score": next(given)},
        "metric_for_best_model": "score",
        "greater_is_better": True,
    }


class HeldOut(Texts):
    def __init__(self):
        super().__init__()
        self.rows = [[3, *row] for row in self.rows[:5]]


class HeldOutImages(Images):
    def __len__(self):
        return 5

    def __getitem__(self, i):
        return super().__getitem__(100 + i)


# --- evaluation, and the choice of a checkpoint ---------------------------------------------------


def test_evaluation_and_the_best_checkpoint_change_no_release(tmp_path):
    plain = trainer_of(tmp_path / "plain", gpt2(), **SAVED)
    plain.train()
    trainer = trainer_of(
        tmp_path / "watched",
        gpt2(),
        **SAVED,
        **scored(0, 1, 3, 2),
        eval_on_start=True,
        load_best_model_at_end=True,
    )
    trainer.train()
    assert trainer.privacy.ledger.read_bytes() == plain.privacy.ledger.read_bytes()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-4")
    other = trainer_of(tmp_path / "other", gpt2(), **SAVED)
    other._load_from_checkpoint(str(tmp_path / "plain" / "checkpoint-4"))
    expected = weights(other.model)
    assert all(torch.equal(expected[n], p) for n, p in weights(trainer.model).items())
    assert trainer.privacy.epsilon == plain.privacy.epsilon  # the choice is among releases


def test_a_best_checkpoint_that_trainer_does_not_load_whole_is_refused(tmp_path):
    """It would leave some weights of the last step beside those of the best."""
    best = {**scored(3, 1, 2), "load_best_model_at_end": True, "eval_dataset": HeldOutImages()}
    trainer = trainer_of(tmp_path, vit(), **IMAGES, **best, learning_rate=0.05)
    with pytest.raises(runs.CheckpointError, match=r"checkpoint-2.*has weights of two steps"):
        trainer.train()
    assert trainer.privacy.steps_spent == 6


def test_a_run_that_stopped_early_states_the_epsilon_of_all_steps(tmp_path):
    """When it stopped follows from its releases: its own steps bound nothing."""
    early = EarlyStoppingCallback(1)
    trainer = trainer_of(tmp_path, gpt2(), **SAVED, **scored(2, 1, 0), callbacks=[early])
    trainer.train()
    assert trainer.state.global_step == trainer.privacy.steps_spent == 4
    mechanism = trainer.privacy.mechanism
    assert trainer.privacy.epsilon == mechanism.epsilon_after(mechanism.steps)
    assert mechanism.steps > 4
    assert trainer.privacy.guarantee().epsilon == mechanism.epsilons()


@pytest.mark.parametrize("asked", [{"num_train_epochs": 2}, {"max_steps": 3}, {"max_steps": 9}])
def test_the_steps_that_are_priced_are_taken(tmp_path, asked):
    """24 records in batches of 5: an epoch has four steps, whatever is drawn."""
    privacy = PrivacyArguments(epsilon=1, delta=1e-3, noise_seed=7, batch_size=5)
    trainer = trainer_of(tmp_path, privacy=privacy, gradient_accumulation_steps=1, **asked)
    trainer.train()
    steps = asked.get("max_steps", 8)
    assert trainer.privacy.mechanism.steps == trainer.state.global_step == steps
    assert trainer.privacy.steps_spent == steps
    assert 0 < trainer.privacy.epsilon <= 1


# --- what is changed after the trainer was made ---------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_grad_norm", 1.0), ("max_steps", 3), ("gradient_accumulation_steps", 2), ("bf16", True)],
)
def test_arguments_that_are_changed_after_the_trainer_is_made_are_refused(tmp_path, name, value):
    trainer = trainer_of(tmp_path)
    setattr(trainer.args, name, value)
    with pytest.raises(ConfigError, match=name):
        trainer.train()
    assert trainer.privacy.steps_spent == 0


class Reporting(WandbCallback):
    """As of Weights & Biases, which need not be installed."""

    def __init__(self):
        pass


def test_trackers_among_callbacks_are_looked_at_too(tmp_path, monkeypatch):
    logged = PrivacyArguments(epsilon=1, log_private=True)
    with pytest.raises(ConfigError, match=r"report_to=\['wandb'\] with log_private"):
        trainer_of(tmp_path, privacy=logged, callbacks=[Reporting()])
    trainer = trainer_of(tmp_path, privacy=logged)
    trainer.add_callback(Reporting())
    with pytest.raises(ConfigError, match=r"report_to=\['wandb'\] with log_private"):
        trainer.train()
    monkeypatch.setenv("WANDB_WATCH", "gradients")
    with pytest.raises(ConfigError, match="WANDB_WATCH=gradients"):
        trainer_of(tmp_path, callbacks=[Reporting()])
    trainer_of(tmp_path, privacy=logged, callbacks=[ProgressCallback()])


def test_a_callback_that_would_upload_the_folder_is_refused(tmp_path):
    """As dvclive's does when it is made so, without any variable in the environment."""
    callback = TrainerCallback()
    callback._log_model = "all"
    with pytest.raises(ConfigError, match="log_model='all'"):
        trainer_of(tmp_path, callbacks=[callback])


# --- callbacks that meddle ------------------------------------------------------------------------


class Do(TrainerCallback):
    """Something at the beginning of the third step."""

    def __init__(self, meddle):
        self.meddle = meddle

    def on_step_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        if state.global_step == 2:
            self.meddle(model, optimizer)


def _unfreeze(model, optimizer):
    model.model.embed_tokens.requires_grad_(True)


def _freeze(model, optimizer):
    model.lm_head.requires_grad_(False)


def _replace(model, optimizer):
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


MEDDLING = {
    "unfrozen": (_unfreeze, "embed"),
    "frozen": (_freeze, "head"),
    "new": (_replace, "head"),
}


@pytest.mark.parametrize("how", MEDDLING)
def test_parameters_that_change_while_it_trains_are_refused(tmp_path, how):
    meddle, named = MEDDLING[how]
    model = llama()
    model.model.embed_tokens.requires_grad_(False)
    trainer = trainer_of(tmp_path, model, callbacks=[Do(meddle)])
    with pytest.raises(ConfigError, match=f"{named}.*changed during training"):
        trainer.train()
    assert trainer.privacy.steps_spent == 2


class ShortEpoch(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_epoch_stop = state.global_step == 2


def test_an_epoch_that_a_callback_ends_is_refused(tmp_path):
    trainer = trainer_of(tmp_path, callbacks=[ShortEpoch()])
    with pytest.raises(ConfigError, match="end no epoch early"):
        trainer.train()
    assert trainer.privacy.steps_spent == 2


def _noise(module, args, output):
    return output + torch.rand_like(output) if module.training else output


def test_noise_on_embeddings_by_a_hook_is_refused(tmp_path):
    """NEFTune as TRL and Trainer attach it, by hand."""
    model = llama()
    model.get_input_embeddings().register_forward_hook(_noise)
    with pytest.raises(ModelError, match=r"is not the one|what else is in its batch"):
        trainer_of(tmp_path, model).train()


# --- optimizers of one's own ----------------------------------------------------------------------


def _two_rates(model, head=1e-1):
    rest = [p for n, p in model.named_parameters() if n != "lm_head.weight"]
    groups = [{"params": [model.lm_head.weight], "lr": head}, {"params": rest}]
    return torch.optim.SGD(groups, lr=1e-2)


def with_optimizer(folder, make, **more):
    model = llama()
    return trainer_of(folder, model, optimizers=(make(model), None), **more)


def test_an_optimizer_of_ones_own_takes_the_private_gradient(tmp_path):
    trainer = with_optimizer(tmp_path / "own", _two_rates, max_steps=1)
    trainer.train()
    plain = trainer_of(tmp_path / "plain", llama(), optim="sgd", max_steps=1)
    plain.train()
    began, slow, fast = weights(llama()), weights(plain.model), weights(trainer.model)
    for name, before in began.items():
        times = 10 if name == "lm_head.weight" else 1
        torch.testing.assert_close(fast[name] - before, times * (slow[name] - before))


def test_another_rate_of_a_group_is_another_run(tmp_path):
    saved = {"save_strategy": "steps", "save_steps": 2}
    trainer = with_optimizer(tmp_path, _two_rates, **saved, callbacks=[StopAt(3)])
    with pytest.raises(KilledError):
        trainer.train()
    changed = with_optimizer(tmp_path, lambda model: _two_rates(model, head=2e-1), **saved)
    with pytest.raises(runs.LedgerMismatchError, match="optimizer"):
        changed.train(resume_from_checkpoint=True)
    with_optimizer(tmp_path, _two_rates, **saved).train(resume_from_checkpoint=True)


def test_another_class_of_optimizer_is_another_run(tmp_path):
    def trainer(kind, **more):
        made_by = (kind, {"lr": 1e-2})
        return trainer_of(tmp_path, llama(), optimizer_cls_and_kwargs=made_by, **more)

    saved = {"save_strategy": "steps", "save_steps": 2}
    with pytest.raises(KilledError):
        trainer(torch.optim.SGD, **saved, callbacks=[StopAt(3)]).train()
    with pytest.raises(runs.LedgerMismatchError, match="optimizer"):
        trainer(torch.optim.Adagrad, **saved).train(resume_from_checkpoint=True)


def test_parameters_of_others_are_not_moved_by_what_they_learn(tmp_path):
    extra = torch.nn.Parameter(torch.ones(()))

    def learns(model, optimizer):
        (extra * model.lm_head.weight.detach().sum()).backward()

    def make(model):
        return torch.optim.SGD([*model.parameters(), extra], lr=1e-2)

    trainer = with_optimizer(tmp_path, make, callbacks=[Do(learns)])
    with pytest.raises(ConfigError, match="optimizer holds 1 parameters"):
        trainer.train()
    assert trainer.privacy.steps_spent == 2
    assert extra.item() == 1


def test_what_the_optimizer_does_not_hold_is_warned_of(tmp_path, caplog):
    def make(model):
        return torch.optim.SGD(model.model.parameters(), lr=1e-2)

    with_optimizer(tmp_path, make, max_steps=1).train()
    assert "does not hold lm_head.weight" in caplog.text


# --- a schedule that follows the scores -----------------------------------------------------------


def test_a_rate_that_follows_scores_is_resumed(tmp_path):
    follows = {
        **SAVED,
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "lr_scheduler_kwargs": {"patience": 0, "mode": "max"},
    }
    whole = trainer_of(tmp_path / "whole", gpt2(), **follows, **scored(3, 2, 1))
    whole.train()
    assert whole.optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)  # twice a tenth
    broken = trainer_of(tmp_path / "run", gpt2(), **follows, **scored(3, 2), callbacks=[StopAt(5)])
    with pytest.raises(KilledError):
        broken.train()
    again = trainer_of(tmp_path / "run", gpt2(), **follows, **scored(1))
    again.train(resume_from_checkpoint=True)
    expected = weights(whole.model)
    assert all(torch.equal(expected[n], p) for n, p in weights(again.model).items())


def test_nothing_but_the_releases_tells_of_the_records(tmp_path, monkeypatch):
    """As `tests/training/test_leaks.py` asks of `dpft train`, of all that a trainer writes."""
    release_noise_alone(monkeypatch)
    left = []
    for changes in ({}, {0: [4], 3: [5] * 14, 7: [9]}):
        folder, data = tmp_path / "out", Texts()
        for place, row in changes.items():
            data.rows[place] = row
        every = {"logging_strategy": "steps", "logging_steps": 1}
        trainer = trainer_of(folder, data=data, save_strategy="steps", save_steps=2, **every)
        trainer.train()
        trainer.save_model()
        trainer.save_state()
        files = [file for file in folder.rglob("*") if file.is_file()]
        named = {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
        left.append({n: content for n, content in named.items() if not n.startswith("private/")})
        shutil.rmtree(folder)
    # What is of the clock, and the digests of the records under the key.
    clock = rb'"(train_[a-z_]+|data|collated|chain)":\s*"?[^,"}]+|[\d.]+ s\b'
    one, other = ({n: re.sub(clock, b"", c) for n, c in files.items()} for files in left)
    assert one.keys() == other.keys() > {"ledger.jsonl", "model.safetensors", "trainer_state.json"}
    assert [name for name in one if one[name] != other[name]] == []
