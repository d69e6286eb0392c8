"""LoRA: begins as the model it adapts, trains its own layers, and follows the seed."""

import pytest
import torch

from dpft.config import Adapt
from dpft.errors import ModelError
from dpft.models.lora import targets_of
from tests.models.adapted import adapted, trained
from tests.privacy.small_models import build

TARGETS = {
    "gpt2": ("c_attn",),
    "llama": ("q_proj", "v_proj"),
    "roberta_mlm": ("query", "value"),
    "roberta_classifier": ("query", "value"),
    "vit": ("q_proj", "v_proj"),
}


@pytest.mark.parametrize("model", TARGETS)
def test_it_adapts_queries_and_values_and_begins_as_the_model(model):
    assert targets_of(build(model, False).model) == TARGETS[model]
    plain = build(model, False).all_losses()
    case, _ = adapted(model, "lora", tied=False)
    assert torch.equal(case.all_losses(), plain)
    adapters = {name for name in trained(case.model) if ".lora_" in name}
    assert len(adapters) == 2 * 2 * len(TARGETS[model])  # A and B, in two blocks
    for name in adapters:
        assert any(f".{target}." in name for target in TARGETS[model])
    rest = trained(case.model) - adapters
    assert all("classifier.modules_to_save." in name for name in rest)
    assert bool(rest) == (model in ("roberta_classifier", "vit"))


def test_adapters_follow_the_seed():
    def first(seed):
        model = adapted("gpt2", "lora", seed=seed)[0].model
        return next(p for n, p in model.named_parameters() if "lora_A" in n)

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


def test_other_layers_can_be_named():
    settings = Adapt("lora", rank=2, alpha=4, targets=("c_fc",))
    names = trained(adapted("gpt2", "lora", settings=settings)[0].model)
    assert names
    assert all(".mlp.c_fc.lora_" in name for name in names)


def test_layers_of_unknown_names_are_refused_with_the_known_ones():
    settings = Adapt("lora", rank=2, alpha=4, targets=("q_projection",))
    with pytest.raises(ModelError, match=r"q_projection.*expected names such as c_attn, c_fc"):
        adapted("gpt2", "lora", settings=settings)
