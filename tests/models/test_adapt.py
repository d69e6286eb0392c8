"""Each adaptation trains the parameters that it should, and no others."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

from dpft.config.adapt import ADAPTATIONS, Adapt
from dpft.config.errors import ModelError
from dpft.config.folder import conf_dir
from dpft.models.adapt import adapt
from dpft.models.load import LoadedModel, load_model
from dpft.models.needs import Needs
from dpft.models.select import has_new_head, head_modules, select
from dpft.privacy import make_clipper
from dpft.privacy.clipping.groups import find_blocks
from tests.models.adapted import NEEDS, SMALL, adapted, shipped, trained
from tests.privacy import architectures
from tests.privacy.small_models import build as build_case

BLOCK = {
    "gpt2": "transformer.h.1.",
    "llama": "model.layers.1.",
    "roberta_mlm": "roberta.encoder.layer.1.",
    "roberta_classifier": "roberta.encoder.layer.1.",
    "vit": "vit.layers.1.",
}
FINAL_NORM = {"gpt2": "transformer.ln_f.", "llama": "model.norm.", "vit": "vit.layernorm."}
ATTENTION = {
    "gpt2": ".attn.",
    "llama": ".self_attn.",
    "roberta_mlm": ".attention.",
    "roberta_classifier": ".attention.",
    "vit": ".attention.",
}
# Where the head is a parameter of its own; where it is tied, what remains of it.
HEAD = {
    ("gpt2", True): (),
    ("gpt2", False): ("lm_head.",),
    ("llama", True): (),
    ("llama", False): ("lm_head.",),
    ("roberta_mlm", True): ("lm_head.",),
    ("roberta_mlm", False): ("lm_head.",),
    ("roberta_classifier", False): ("classifier.",),
    ("vit", False): ("classifier.",),
    ("wrn", False): ("head.",),
}
CASES = [
    (model, tied, name)
    for model, tied in HEAD
    for name in ("full", "scratch", "linear", "bias", "attention", "top2")
]
REFUSED = {
    ("gpt2", True, "linear"): "its input embedding; .*model.tied=false",
    ("llama", True, "linear"): "its input embedding; .*model.tied=false",
    ("llama", True, "bias"): "LlamaForCausalLM has none; type adapt=lora",
    ("llama", False, "bias"): "LlamaForCausalLM has none; type adapt=lora",
    ("wrn", False, "attention"): "WideResNet has none; type adapt=full",
    ("wrn", False, "top2"): "WideResNet has none; type adapt=full",
}


def expected(model, tied, name, every):
    head = HEAD[model, tied]
    new = head if has_new_head(NEEDS[model]) else ()
    chosen = {
        "full": lambda n: True,
        "scratch": lambda n: True,
        "linear": lambda n: n.startswith(head) if head else False,
        "bias": lambda n: n.endswith("bias"),
        "attention": lambda n: ATTENTION[model] in n,
        "top2": lambda n: n.startswith((BLOCK[model], FINAL_NORM.get(model, "none"), *head)),
    }[name]
    return {n for n in every if chosen(n) or (new and n.startswith(new))}


@pytest.mark.parametrize(("model", "tied", "name"), [c for c in CASES if c not in REFUSED])
def test_it_trains_what_it_should(model, tied, name):
    every = trained(build_case(model, tied).model)  # without what is dead in the model itself
    case, _ = adapted(model, name, tied)
    assert trained(case.model) == expected(model, tied, name, every)
    assert trained(case.model)


@pytest.mark.parametrize(("model", "tied", "name"), REFUSED)
def test_it_is_refused_with_a_reason(model, tied, name):
    with pytest.raises(ModelError, match=REFUSED[model, tied, name]):
        adapted(model, name, tied)


@pytest.mark.parametrize(
    ("architecture", "needs", "final"),
    [
        # registered before the blocks
        ("opt", Needs("causal"), {"model.decoder.final_layer_norm"}),
        # one norm of embeddings before the blocks, one of the output behind them
        ("bloom", Needs("causal"), {"transformer.ln_f"}),
        # behind the blocks of the decoder, but of its embeddings
        ("bart", Needs("causal", source=True), set()),
        ("t5", Needs("causal", source=True), {"decoder.final_layer_norm"}),
        ("modernbert", Needs("masked"), {"model.final_norm"}),
    ],
)
def test_the_last_blocks_are_trained_with_the_norm_that_is_computed_after_them(
    architecture, needs, final
):
    model = architectures.build(architecture).model
    select(model, Adapt("top2", blocks=1), needs)
    apart = [*find_blocks(model), *head_modules(model, needs)]
    norms = {
        name
        for name, module in model.named_modules()
        if "Norm" in type(module).__name__
        and not name.startswith(tuple(f"{other}." for other in apart))
        and all(p.requires_grad for p in module.parameters())
    }
    assert norms == final


def test_every_adaptation_has_a_file_and_every_file_is_one():
    files = {file.stem for file in (conf_dir() / "adapt").glob("*.yaml")}
    assert files == set(ADAPTATIONS) == set(SMALL)
    for name in files:
        assert shipped(name).name == name


def test_scratch_refuses_pretrained_weights():
    from dpft.config.schema import Model

    loaded = load_model(Model("tiny", "bundled:tiny"), Needs("causal"), 0)
    with pytest.raises(ModelError, match=r"model\.init=scratch"):
        adapt(loaded, Adapt("scratch"), Needs("causal"), 0)


def test_the_pooler_of_a_new_head_is_trained_with_it():
    config = BertConfig(
        vocab_size=23, hidden_size=12, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=20, max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    for name in ("linear", "attention", "lora", "rgp"):
        model = BertForSequenceClassification(config)
        loaded = adapt(LoadedModel(model, None, ()), SMALL[name], NEEDS["roberta_classifier"], 0)
        head = {n for n in trained(loaded.model) if "pooler." in n or "classifier." in n}
        assert len(head) == 4, name
        assert (trained(loaded.model) == head) == (name == "linear")
        clipper = make_clipper(loaded.model, "bk", threshold=0.1)
        logits = loaded.model(input_ids=torch.tensor([[3, 4], [5, 6]])).logits
        clipper.backward(logits[:, 0].square())
        assert not [f["parameter"] for f in clipper.explain() if f["form"] == "unused"]
        clipper.close()


def parameters_of(model, name, kind):
    """Trained parameters of a full-sized architecture whose weights are never made."""
    loaded = adapt(LoadedModel(model, None, ()), shipped(name), Needs(kind), 0)
    return sum(p.numel() for p in loaded.model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # rank 4, once in each of 12 blocks, for a matrix of 768 by 3 * 768
        ("lora", 12 * 4 * (768 + 3 * 768)),  # 147,456: "about 0.15 million" (Li et al. 2022)
        # 10 embeddings, then a network of 768, 512, and keys and values of 12 blocks
        ("prefix", 10 * 768 + (768 + 1) * 512 + (512 + 1) * 2 * 12 * 768),  # "about 10 million"
        ("top2", 2 * 7_087_872 + 2 * 768),
        ("attention", 12 * (768 * 4 * 768 + 4 * 768)),
        ("bias", 12 * (3 + 1 + 4 + 1 + 2) * 768 + 768),
    ],
)
def test_counts_of_gpt2_small(name, count):
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config())
    assert parameters_of(model, name, "causal") == count
