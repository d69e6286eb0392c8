"""`PrivateTrainer` on models of which a part is trained: frozen modules, adapters of peft."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model

from tests.integrations.by_hand import take_steps
from tests.integrations.test_trainer import (
    SAVED,
    Texts,
    gpt2,
    killed,
    llama,
    same_bits,
    trainer_of,
    weights,
)

LORA = {"r": 2, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}


def _last_block(model):
    model.requires_grad_(False)
    model.model.layers[-1].requires_grad_(True)
    return model


def _adapted(config):
    def adapted(model):
        made = get_peft_model(model, config).double()
        for name, parameter in made.named_parameters():
            if "lora_B" in name:  # else its first gradient is all that there is
                torch.nn.init.normal_(parameter, std=0.1)
        return made

    return adapted


PARTS = {
    "the last block": _last_block,
    "LoRA and a head": _adapted(LoraConfig(**LORA, modules_to_save=["lm_head"], use_rslora=True)),
}


@pytest.mark.parametrize("part", PARTS)
def test_what_is_trained_moves_as_by_hand_and_nothing_else(tmp_path, part):
    torch.manual_seed(2)
    model = PARTS[part](llama(torch.float64))
    other = copy.deepcopy(model)
    trainer = trainer_of(tmp_path, model, optim="sgd", lr_scheduler_type="constant")
    before = weights(model)
    trainer.train()
    take_steps(other, Texts(), seed=7, batch=6, steps=6, sigma=1.0, threshold=0.5, rate=1e-2)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert {n for n, p in weights(model).items() if not torch.equal(p, before[n])} == trained
    for name, parameter in other.named_parameters():
        torch.testing.assert_close(weights(model)[name], parameter.data, rtol=0, atol=1e-10)


def _lora():
    torch.manual_seed(3)
    config = LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True)
    return get_peft_model(gpt2(), config)


def test_an_adapter_that_was_killed_goes_on_to_the_same_bits_and_ends_once(tmp_path):
    whole = trainer_of(tmp_path / "whole", _lora(), **SAVED)
    whole.train()
    killed(tmp_path / "run", _lora(), 3, **SAVED)
    for _ in range(2):  # the second time nothing is left to do
        trainer = trainer_of(tmp_path / "run", _lora(), **SAVED)
        trainer.train(resume_from_checkpoint=True)
        assert same_bits(trainer, weights(whole.model))
        ledger = trainer.privacy.ledger.read_bytes()
        assert ledger == whole.privacy.ledger.read_bytes()
