"""Partitions of the trainable parameters, and the groups that papers count in known models."""

import math
import re

import pytest
import torch
import transformers
from torch import nn

from dpft.privacy.clipping.groups import assign, find_blocks, partition
from dpft.privacy.spec import PARTITIONS, Partition, sensitivity

# Models are built on the meta device: names and shapes, no memory.


def gpt2(tied=False, **settings):
    config = transformers.GPT2Config(tie_word_embeddings=tied, **settings)
    return transformers.GPT2LMHeadModel(config)


def gpt2_medium():
    return gpt2(n_layer=24, n_embd=1024, n_head=16)


def fused_block(d):
    """A ViT block with one matrix for query, key and value: six layers."""
    norms = {"norm1": nn.LayerNorm(d), "norm2": nn.LayerNorm(d)}
    attention = {"qkv": nn.Linear(d, 3 * d), "proj": nn.Linear(d, d)}
    return nn.ModuleDict(
        norms | attention | {"fc1": nn.Linear(d, 4 * d), "fc2": nn.Linear(4 * d, d)}
    )


def tied():
    """A head that shares its weight with the embedding and has a separate bias."""
    blocks = nn.ModuleList(fused_block(4) for _ in range(3))
    ends = {"embedding": nn.Embedding(10, 4), "layers": blocks, "head": nn.Linear(4, 10)}
    ends["head"].weight = ends["embedding"].weight
    return nn.ModuleDict(ends)


def mixture():
    """Mixture layers, whose experts form the longest list."""

    def layer():
        attention = nn.ModuleDict({"qkv": nn.Linear(8, 24), "out": nn.Linear(8, 8)})
        experts = nn.ModuleList(
            nn.ModuleDict({"up": nn.Linear(8, 16), "down": nn.Linear(16, 8)}) for _ in range(8)
        )
        return nn.ModuleDict({"attention": attention, "gate": nn.Linear(8, 8), "experts": experts})

    return nn.ModuleDict({"layers": nn.ModuleList(layer() for _ in range(2))})


def on_meta(build, *arguments):
    with torch.device("meta"):
        return build(*arguments)


def trainable(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def parts_of(model, name, **settings):
    parts = partition(model, trainable(model), Partition(name, **settings))
    assert len(dict(parts)) == len(parts), "two groups of one name"
    return dict(parts)


@pytest.mark.parametrize(
    ("build", "arguments", "expected"),
    [
        (gpt2, (), (12, 76, 149)),
        (gpt2, (True,), (12, 75, 148)),
        (gpt2_medium, (), (24, 148, 293)),
    ],
)
def test_models_have_the_papers_numbers_of_groups(build, arguments, expected):
    """Bu et al. 2023, tables 4, 5 and 7."""
    model = on_meta(build, *arguments)
    names = ("block_wise", "per_layer", "per_param")
    assert tuple(len(parts_of(model, name)) for name in names) == expected


SETTINGS = {
    "uniform": {"count": 2},
    "two_group": {"boundary": 1},
    "per_device": {"count": 3},
    "custom": {"patterns": (("*weight*",), ("*bias",))},
}


@pytest.mark.parametrize("build", [lambda: gpt2(tied=True), tied])
def test_every_parameter_is_in_exactly_one_group_and_in_order(build):
    model = on_meta(build)
    order = {parameter: i for i, parameter in enumerate(trainable(model))}
    for how in PARTITIONS:
        parts = parts_of(model, how, **SETTINGS.get(how, {}))
        grouped = [parameter for own in parts.values() for parameter in own]
        assert sorted(grouped) == sorted(order), how
        assert all(own and list(own) == sorted(own, key=order.get) for own in parts.values()), how
        firsts = [order[own[0]] for own in parts.values()]
        assert how == "custom" or firsts == sorted(firsts), how
        groups = assign(tuple(parts.items()), threshold=0.3)
        assert sensitivity([g.threshold for g in groups]) == pytest.approx(0.3, rel=1e-12)
        assert {g.threshold for g in groups} == {0.3 / math.sqrt(len(parts))}


def test_tied_weight_joins_its_first_owner_and_the_rest_of_the_second_stays():
    layers, types = parts_of(tied(), "per_layer"), parts_of(tied(), "by_type")
    assert layers["embedding"] == ("embedding.weight",)
    assert layers["head"] == ("head.bias",)
    assert types["embedding"] == ("embedding.weight",)
    assert "head.bias" in types["linear"]


def test_what_is_outside_the_blocks_joins_the_first_and_the_last():
    blocks = parts_of(on_meta(gpt2), "block_wise")
    assert list(blocks) == [f"transformer.h.{i}" for i in range(12)]
    assert blocks["transformer.h.0"][:2] == ("transformer.wte.weight", "transformer.wpe.weight")
    assert blocks["transformer.h.11"][-2:] == ("transformer.ln_f.bias", "lm_head.weight")


def test_blocks_are_found_by_structure():
    """Experts stay within their block, stages are opened, wrapped models and heads are none."""
    assert list(find_blocks(on_meta(mixture))) == ["layers.0", "layers.1"]
    swin = on_meta(transformers.SwinForImageClassification, transformers.SwinConfig())
    assert len(find_blocks(swin)) == 2 + 2 + 6 + 2
    wrapped = on_meta(lambda: nn.Sequential(gpt2(), nn.Linear(4, 2)))
    assert list(find_blocks(wrapped)) == [f"0.transformer.h.{i}" for i in range(12)]
    config = transformers.T5Config(num_layers=3, num_decoder_layers=2)
    names = list(parts_of(on_meta(transformers.T5ForConditionalGeneration, config), "block_wise"))
    assert ["encoder" in name for name in names] == [True] * 3 + [False] * 2


def test_devices_are_cut_as_evenly_as_layers_allow_and_never_within_a_block():
    model = nn.Sequential(*(nn.Linear(1, size, bias=False) for size in (5, 1, 1, 1, 4, 2, 2)))
    assert list(parts_of(model, "per_device", count=3).values()) == [
        ("0.weight", "1.weight"),
        ("2.weight", "3.weight", "4.weight"),
        ("5.weight", "6.weight"),
    ]
    devices = parts_of(on_meta(gpt2_medium), "per_device", count=4)
    blocks = [{n.split(".")[2] for n in own if ".h." in n} for own in devices.values()]
    assert sum(map(len, blocks)) == 24


def test_patterns_keep_their_order():
    patterns = [["head.*", "layers.2.*"], ["embedding.*", "layers.[01].*"]]  # as of a config file
    for name, word in (("custom", "group"), ("per_device", "device")):
        groups = parts_of(tied(), name, patterns=patterns)
        assert list(groups) == [f"{word} 0", f"{word} 1"]
        assert groups[f"{word} 0"][-1] == "head.bias"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "uniform", "count": 4}, "count is 4; expected 1 to 3"),
        ({"name": "two_group", "boundary": 3}, "boundary is 3; expected 1 to 2"),
        ({"name": "per_device", "count": 21}, "count is 21 devices; expected 1 to 20"),
        (
            {"name": "custom", "patterns": (("layers.*",), ("head.*",))},
            "in no group: embedding.weight",
        ),
        (
            {"name": "custom", "patterns": (("*",), ("head.*", "*.bias"))},
            "in several groups: layers.0.norm1.bias",
        ),
        ({"name": "custom", "patterns": (("*",), ("x.*",))}, "groups without a trainable"),
    ],
)
def test_partitions_that_do_not_fit_the_model_are_refused(settings, message):
    model = tied()
    with pytest.raises(ValueError, match=re.escape(message)):
        partition(model, trainable(model), Partition(**settings))


@pytest.mark.parametrize(
    "given",
    [{}, {"threshold": 1.0, "thresholds": [1.0, 1.0]}, {"thresholds": [1.0]}, {"threshold": 0.0}],
)
def test_impossible_thresholds_are_refused(given):
    with pytest.raises(ValueError, match="threshold"):
        assign((("first", ("a",)), ("second", ("b",))), **given)
