"""What goes on around a step of `PrivateTrainer`: callbacks, evaluation, optimizers, changes."""

import re
import shutil

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainerCallback

from dpft.config.errors import ConfigError
from tests.integrations.test_trainer import (
    SAVED,
    Texts,
    gpt2,
    llama,
    same_bits,
    trainer_of,
    weights,
)
from tests.small_runs import release_noise_alone


def scored(*values):
    given = iter(values)
    return {
        **{"eval_strategy": "steps", "eval_steps": 2, "dataloader_pin_memory": False},
        "eval_dataset": HeldOut(),
        "compute_metrics": lambda answers: {"score": next(given)},
        "metric_for_best_model": "score",
        "greater_is_better": True,
    }


class HeldOut(Texts):
    def __init__(self):
        super().__init__()
        self.rows = [[3, *row] for row in self.rows[:5]]


def test_evaluation_and_the_best_checkpoint_change_no_release(tmp_path):
    plain = trainer_of(tmp_path / "plain", gpt2(), **SAVED)
    plain.train()
    best = {"eval_on_start": True, "load_best_model_at_end": True}
    trainer = trainer_of(tmp_path / "watched", gpt2(), **SAVED, **scored(0, 1, 3, 2), **best)
    trainer.train()
    assert trainer.privacy.ledger.read_bytes() == plain.privacy.ledger.read_bytes()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-4")
    other = trainer_of(tmp_path / "other", gpt2(), **SAVED)
    other._load_from_checkpoint(str(tmp_path / "plain" / "checkpoint-4"))
    assert same_bits(trainer, weights(other.model))
    assert trainer.privacy.epsilon == plain.privacy.epsilon  # the choice is among releases


def test_a_run_that_stopped_early_states_the_epsilon_of_all_steps(tmp_path):
    """When it stopped follows from its releases: its own steps bound nothing."""
    early = EarlyStoppingCallback(1)
    trainer = trainer_of(tmp_path, gpt2(), **SAVED, **scored(2, 1, 0), callbacks=[early])
    trainer.train()
    assert trainer.state.global_step == trainer.privacy.steps_spent == 4
    mechanism = trainer.privacy.mechanism
    assert trainer.privacy.epsilon == mechanism.epsilon_after(mechanism.steps)
    assert mechanism.steps > 4
    guarantee = trainer.privacy.guarantee()
    assert guarantee.epsilon == mechanism.epsilons()
    assert any(one.startswith(f"4 of {mechanism.steps} ") for one in guarantee.caveats)


@pytest.mark.parametrize(("name", "value"), [("max_grad_norm", 1.0), ("max_steps", 3)])
def test_arguments_that_are_changed_after_the_trainer_is_made_are_refused(tmp_path, name, value):
    trainer = trainer_of(tmp_path)
    setattr(trainer.args, name, value)
    with pytest.raises(ConfigError, match=name):
        trainer.train()
    assert trainer.privacy.steps_spent == 0


class Do(TrainerCallback):
    """Something at the beginning of the third step."""

    def __init__(self, meddle):
        self.meddle = meddle

    def on_step_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        if state.global_step == 2:
            self.meddle(model, optimizer)


def test_parameters_that_change_while_it_trains_are_refused(tmp_path):
    model = llama()
    table = model.model.embed_tokens.requires_grad_(False)
    unfreeze = Do(lambda model, optimizer: table.requires_grad_(True))
    trainer = trainer_of(tmp_path, model, callbacks=[unfreeze])
    with pytest.raises(ConfigError, match=r"embed.*changed during training"):
        trainer.train()
    assert trainer.privacy.steps_spent == 2


def _two_rates(model):
    rest = [p for n, p in model.named_parameters() if n != "lm_head.weight"]
    groups = [{"params": [model.lm_head.weight], "lr": 1e-1}, {"params": rest}]
    return torch.optim.SGD(groups, lr=1e-2)


def test_an_optimizer_of_ones_own_takes_the_private_gradient(tmp_path):
    model = llama()
    trainer = trainer_of(tmp_path / "own", model, optimizers=(_two_rates(model), None), max_steps=1)
    trainer.train()
    plain = trainer_of(tmp_path / "plain", llama(), optim="sgd", max_steps=1)
    plain.train()
    began, slow, fast = weights(llama()), weights(plain.model), weights(trainer.model)
    for name, before in began.items():
        times = 10 if name == "lm_head.weight" else 1
        torch.testing.assert_close(fast[name] - before, times * (slow[name] - before))


def test_parameters_of_others_are_not_moved_by_what_they_learn(tmp_path):
    extra = torch.nn.Parameter(torch.ones(()))

    def learns(model, optimizer):
        (extra * model.lm_head.weight.detach().sum()).backward()

    model = llama()
    optimizer = torch.optim.SGD([*model.parameters(), extra], lr=1e-2)
    trainer = trainer_of(tmp_path, model, optimizers=(optimizer, None), callbacks=[Do(learns)])
    with pytest.raises(ConfigError, match="optimizer holds 1 parameters"):
        trainer.train()
    assert trainer.privacy.steps_spent == 2
    assert extra.item() == 1


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
