"""Parameter counts in docs/reference/models.md are those of the architectures."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    RobertaConfig,
    RobertaForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from dpft.config.folder import summary
from dpft.config.schema import Model
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.models.sizes import SIZES
from dpft.models.standins import FAMILIES

DOCS = Path(__file__).parents[2] / "docs/reference/models.md"
CONF = DOCS.parents[2] / "conf/model"
TEN = tuple("abcdefghij")


def stated():
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|.*?\| ([0-9,]{6,}) \|", DOCS.read_text(), re.MULTILINE)
    rows += re.findall(r"^\| `([a-z0-9-]+)` \| ([0-9,]{6,}) \|", DOCS.read_text(), re.MULTILINE)
    return {name: int(count.replace(",", "")) for name, count in rows}


def count(cls, config):
    with torch.device("meta"):
        return sum(p.numel() for p in cls(config).parameters())


def gpt2(width, layers, heads):
    return GPT2LMHeadModel, GPT2Config(n_embd=width, n_layer=layers, n_head=heads)


def encoder(config, width, layers, heads, **options):
    return config(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        **options,
    )


def roberta(*shape):
    options = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
    return RobertaForMaskedLM, encoder(RobertaConfig, *shape, **options)


def vit(*shape):
    return ViTForImageClassification, encoder(ViTConfig, *shape, num_labels=10)


def t5(width, hidden, layers, heads, **options):
    sizes = {"d_model": width, "d_ff": hidden, "num_layers": layers, "num_heads": heads}
    return T5ForConditionalGeneration, T5Config(**sizes, **options)


def gated_t5(config):
    """With a head of its own, which transformers 5 does not build."""
    model = T5ForConditionalGeneration(config)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def bart(width, layers, heads):
    sizes = {
        f"{half}_{what}": n
        for half in ("encoder", "decoder")
        for what, n in (("layers", layers), ("attention_heads", heads), ("ffn_dim", 4 * width))
    }
    return BartForConditionalGeneration, BartConfig(vocab_size=50265, d_model=width, **sizes)


SMOLLM2 = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    intermediate_size=1536,
    tie_word_embeddings=True,
)
PUBLISHED = {
    "distilgpt2": gpt2(768, 6, 12),
    "gpt2": gpt2(768, 12, 12),
    "gpt2-medium": gpt2(1024, 24, 16),
    "gpt2-large": gpt2(1280, 36, 20),
    "gpt2-xl": gpt2(1600, 48, 25),
    "llama-3-8b": (LlamaForCausalLM, SIZES["meta-llama/Meta-Llama-3-8B"]()),
    "gpt3-175b": (GPT2LMHeadModel, SIZES["sizes:gpt3-175b"]()),
    "dialogpt-medium": gpt2(1024, 24, 16),
    "openai-gpt": (OpenAIGPTLMHeadModel, OpenAIGPTConfig(vocab_size=40478 + 1)),
    "smollm2-135m": (LlamaForCausalLM, SMOLLM2),
    "bert-base": (BertForMaskedLM, encoder(BertConfig, 768, 12, 12)),
    "bert-large": (BertForMaskedLM, encoder(BertConfig, 1024, 24, 16)),
    "roberta-base": roberta(768, 12, 12),
    "roberta-large": roberta(1024, 24, 16),
    "t5-small": t5(512, 2048, 6, 8),
    "t5-base": t5(768, 3072, 12, 12),
    "flan-t5-base": (gated_t5, t5(768, 2048, 12, 12, feed_forward_proj="gated-gelu")[1]),
    "bart-base": bart(768, 6, 12),
    "bart-large": bart(1024, 12, 16),
    "minilm": (BertForSequenceClassification, encoder(BertConfig, 384, 6, 12)),
    "vit-small": vit(384, 12, 6),
    "vit-base": vit(768, 12, 12),
    "vit-large": vit(1024, 24, 16),
}
OFFLINE = {
    "tiny": ("bundled:tiny", "causal"),
    "wrn16-4": ("bundled:wrn16-4", "image"),
    "random-gpt2": ("random:gpt2", "causal"),
    "random-openai-gpt": ("random:openai-gpt", "causal"),
    "random-llama": ("random:llama", "causal"),
    "random-bert": ("random:bert", "masked"),
    "random-roberta": ("random:roberta", "masked"),
    "random-t5": ("random:t5", "paired"),
    "random-bart": ("random:bart", "paired"),
    "random-vit": ("random:vit", "image"),
    "random-wrn": ("random:wrn", "image"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name):
    assert stated()[name] == count(*PUBLISHED[name])


def test_sizes_that_are_known_without_the_hub_are_the_published():
    """By which `dpft plan` simulates; a classifier's head has as many rows as the table's."""
    files = {name: yaml.safe_load((CONF / f"{name}.yaml").read_text()) for name in PUBLISHED}
    known = {name: SIZES[file["path"]]() for name, file in files.items() if file["path"] in SIZES}
    assert {"gpt2-xl", "roberta-large", "t5-small", "vit-small"} < set(known)
    for name, config in known.items():
        if isinstance(config, ViTConfig):
            config.num_labels = len(TEN)
        assert stated()[name] == count(PUBLISHED[name][0], config)


@pytest.mark.parametrize("name", OFFLINE)
def test_sizes_of_what_loads_offline(name):
    path, kind = OFFLINE[name]
    needs = Needs(kind, TEN if kind == "image" else ())
    if kind == "paired":
        needs = Needs("causal", source=True)
    model = load_model(Model(name, path, init="scratch"), needs, seed=0).model
    assert stated()[name] == sum(p.numel() for p in model.parameters())


def test_every_config_file_has_its_row():
    files = {file.stem for file in CONF.glob("*.yaml")}
    assert set(stated()) == files - {"custom"} == {*PUBLISHED, *OFFLINE}
    assert {f"random-{family}" for family in FAMILIES} <= files


def test_dpft_ls_model_tells_size_and_kind():
    """In three digits, as the table has them in full."""
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| [0-9,]{6,} \| (.*?) \|", DOCS.read_text(), re.M)
    assert {name for name, _ in rows} >= {*PUBLISHED, "tiny", "wrn16-4"}
    for name, kind in rows:
        size, unit, rest = summary("model", name).split(" ", 2)
        exact = stated()[name] / {"million": 1e6, "billion": 1e9}[unit]
        assert float(size) == pytest.approx(exact, rel=0.005), name
        assert kind.replace("`", "") in rest
