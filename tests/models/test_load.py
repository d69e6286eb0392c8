"""Models load from the bundle, from folders in the hub's format, or say why not."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPT2TokenizerFast

from dpft.config import Model
from dpft.errors import ModelError
from dpft.models import Needs, load_model
from dpft.models.load import is_tied
from dpft.privacy import make_clipper

CAUSAL = Needs("causal")
BUNDLED = Model("tiny", "bundled:tiny")


def test_the_bundled_model_is_tied_float32_and_fits_its_tokenizer():
    loaded = load_model(BUNDLED, CAUSAL, seed=0)
    assert is_tied(loaded.model)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert len(loaded.tokenizer) == loaded.model.config.vocab_size
    assert loaded.labels == ("bundled tiny model",)


def test_untied_has_one_parameter_more_and_saves_both(tmp_path):
    tied = load_model(BUNDLED, CAUSAL, seed=0).model
    untied = load_model(Model("tiny", "bundled:tiny", tied=False), CAUSAL, seed=0).model
    assert len(list(untied.parameters())) == len(list(tied.parameters())) + 1
    assert not is_tied(untied)
    assert torch.equal(untied.lm_head.weight, untied.transformer.wte.weight)
    clipper = make_clipper(untied, "bk", threshold=1.0)
    assert "lm_head.weight" in clipper.parameters
    clipper.close()
    with torch.no_grad():
        untied.lm_head.weight.add_(1.0)
    untied.save_pretrained(tmp_path)
    again = GPT2LMHeadModel.from_pretrained(tmp_path, dtype=torch.float32)
    assert torch.equal(again.lm_head.weight, untied.lm_head.weight)
    assert torch.equal(again.transformer.wte.weight, untied.transformer.wte.weight)


def test_scratch_keeps_the_architecture_and_follows_the_seed():
    scratch = Model("tiny", "bundled:tiny", init="scratch")
    one, same, other = (load_model(scratch, CAUSAL, seed).model for seed in (1, 1, 2))
    weights = [m.transformer.h[0].attn.c_attn.weight for m in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert load_model(scratch, CAUSAL, 1).labels == ("bundled tiny model", "random initialisation")


def test_dropout_can_be_set():
    loaded = load_model(Model("tiny", "bundled:tiny", dropout=0.25), CAUSAL, seed=0)
    assert loaded.model.transformer.drop.p == 0.25


def test_a_folder_with_gpt2s_own_tokenizer(data_root, tmp_path):
    """GPT-2's architecture with random weights beside its published vocabulary files."""
    source = data_root / "tokenizers" / "gpt2"
    tokenizer = GPT2TokenizerFast(
        vocab=str(source / "vocab.json"), merges=str(source / "merges.txt")
    )
    assert len(tokenizer) == 50257
    tokenizer.save_pretrained(tmp_path)
    config = GPT2Config(n_embd=8, n_layer=1, n_head=2)
    GPT2LMHeadModel(config).to(torch.float16).save_pretrained(tmp_path)
    loaded = load_model(Model("gpt2", str(tmp_path)), CAUSAL, seed=0)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert len(loaded.tokenizer) == 50257
    assert loaded.labels == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Model("gpt2", "openai-community/gpt2"), r"hub model openai-community/gpt2 .*go online"),
        (Model("x", "bundled:x"), "no bundled model 'bundled:x'"),
        (Model("x", "/nowhere/at/all"), "could not be loaded"),
    ],
)
def test_what_cannot_be_had_is_one_clear_sentence(settings, message):
    with pytest.raises(ModelError, match=message):
        load_model(settings, CAUSAL, seed=0)


def test_tied_is_refused_where_head_and_embedding_are_apart(tmp_path):
    untied = load_model(Model("tiny", "bundled:tiny", tied=False), CAUSAL, seed=0)
    untied.model.save_pretrained(tmp_path)
    untied.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"model\.tied=true"):
        load_model(Model("x", str(tmp_path), tied=True), CAUSAL, seed=0)
    assert not is_tied(load_model(Model("x", str(tmp_path)), CAUSAL, seed=0).model)
