"""What is saved computes what was trained: for dpft, and for a stranger's transformers."""

import json

import pytest
import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from dpft.config.adapt import Adapt
from dpft.config.schema import Model
from dpft.models.adapt import adapt
from dpft.models.load import LoadedModel, load_model
from dpft.models.needs import Needs
from dpft.models.save import load_saved, save_model
from dpft.tasks.objectives.causal import CausalExample, collate, token_nll

CAUSAL = Needs("causal")
TINY = Model("tiny", "bundled:tiny")
BATCH = collate(
    [
        CausalExample((5, 6, 7), (8, 9, 10, 0)),
        CausalExample(tuple(range(11, 23)), (8, 0)),
    ]
)
SETTINGS = {
    "full": Adapt("full"),
    "top2": Adapt("top2", blocks=1),
    "lora": Adapt("lora", rank=4, alpha=8),
    "prefix": Adapt("prefix", length=4, hidden=16),
    "rgp": Adapt("rgp", rank=2, follow="update"),
}


@torch.no_grad()
def losses(model):
    return token_nll(model.eval(), BATCH).sum(1)


def moved(name, model=TINY):
    """The tiny model, its trained parameters moved from where they began."""
    loaded = adapt(load_model(model, CAUSAL, 0), SETTINGS[name], CAUSAL, 0)
    lowrank = loaded.reparametrisation
    parameters = loaded.model.parameters() if lowrank is None else lowrank.moved().values()
    with torch.no_grad():
        for p in parameters:
            if p.requires_grad or lowrank is not None:
                p.add_(0.05 * torch.randn_like(p))
    return loaded


@pytest.mark.parametrize("name", SETTINGS)
def test_decode_loads_what_was_trained(name, tmp_path):
    loaded = moved(name)
    before = losses(loaded.model)
    assert not torch.allclose(before, losses(load_model(TINY, CAUSAL, 0).model), rtol=1e-3)
    save_model(loaded, tmp_path)
    assert torch.equal(losses(loaded.model), before)  # saving left it as it was
    again = load_saved(TINY, CAUSAL, 0, tmp_path)
    torch.testing.assert_close(losses(again.model), before, rtol=1e-4, atol=1e-4)
    assert len(again.tokenizer) == len(loaded.tokenizer)


@pytest.mark.parametrize("name", ["full", "top2", "lora", "rgp"])
def test_a_stranger_loads_an_ordinary_model(name, tmp_path):
    loaded = moved(name)
    save_model(loaded, tmp_path)
    stranger = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert type(stranger).__name__ == "GPT2LMHeadModel"
    torch.testing.assert_close(losses(stranger), losses(loaded.model), rtol=1e-4, atol=1e-4)
    plain = load_model(TINY, CAUSAL, 0).model
    assert set(stranger.state_dict()) == set(plain.state_dict())


def test_a_full_disk_is_told_of_as_such_by_the_tokenizer_too(tmp_path):
    (tmp_path / "tokenizer.json").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        save_model(moved("full"), tmp_path)


@pytest.mark.parametrize("name", ["lora", "prefix"])
def test_the_adapter_is_one_that_peft_loads(name, tmp_path):
    loaded = moved(name)
    save_model(loaded, tmp_path / "model", tmp_path / "adapter")
    # A prefix is of the model beside it; LoRA is in it, and would count twice.
    folder = tmp_path / ("model/adapter" if name == "prefix" else "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "bundled:tiny"
    base = load_model(TINY, CAUSAL, 0).model
    theirs = PeftModel.from_pretrained(base, folder).eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    mask = torch.ones_like(ids)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": mask.cumsum(1) - 1}
    with torch.no_grad():
        ours = loaded.model.eval()(**inputs).logits
        torch.testing.assert_close(theirs(**inputs).logits, ours, rtol=1e-4, atol=1e-4)


def test_the_model_beside_a_prefix_is_the_frozen_one(tmp_path):
    loaded = moved("prefix")
    save_model(loaded, tmp_path)
    stranger = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert torch.equal(losses(stranger), losses(load_model(TINY, CAUSAL, 0).model))
    assert "has learned nothing" in (tmp_path / "adapter/README.md").read_text()


@pytest.mark.parametrize("name", ["lora", "rgp"])
def test_a_new_classification_head_is_saved_with_the_rest(name, tmp_path):
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=23, hidden_size=12, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=20, max_position_embeddings=16, type_vocab_size=1, num_labels=2,
    )  # fmt: skip
    needs = Needs("classifier", ("no", "yes"))
    loaded = LoadedModel(RobertaForSequenceClassification(config), None, ())
    loaded = adapt(loaded, SETTINGS[name], needs, 0)
    with torch.no_grad():
        for p in loaded.model.parameters():
            if p.requires_grad:
                p.add_(0.3 * torch.randn_like(p))
    save_model(loaded, tmp_path)
    stranger = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        ours = loaded.model.eval()(input_ids=ids).logits
        torch.testing.assert_close(stranger.eval()(input_ids=ids).logits, ours)
