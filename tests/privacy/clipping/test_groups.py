"""Partitions of the trainable parameters, and the groups that papers count in known models."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable

import peft
import pytest
import torch
import transformers
from torch import nn

from dpft.privacy.clipping.groups import Group, assign, find_blocks, partition
from dpft.privacy.spec import PARTITIONS, Partition
from dpft.privacy.thresholds import sensitivity

# --- models, on the meta device: names and shapes, no memory ---


def gpt2(tied: bool = False, **settings: int) -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(tie_word_embeddings=tied, **settings)
    )


def gpt2_medium(tied: bool = False) -> nn.Module:
    return gpt2(tied, n_layer=24, n_embd=1024, n_head=16)


def gpt2_lora() -> nn.Module:
    config = peft.LoraConfig(r=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    return peft.get_peft_model(gpt2(tied=True, n_layer=4), config)


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=5,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=100,
        )
    )


def mixture() -> nn.Module:
    """Mixture layers, whose experts form the longest list."""

    def layer() -> nn.Module:
        attention = nn.ModuleDict({"qkv": nn.Linear(8, 24), "out": nn.Linear(8, 8)})
        experts = nn.ModuleList(
            nn.ModuleDict({"up": nn.Linear(8, 16), "down": nn.Linear(16, 8)}) for _ in range(8)
        )
        return nn.ModuleDict({"attention": attention, "gate": nn.Linear(8, 8), "experts": experts})

    return nn.ModuleDict({"layers": nn.ModuleList(layer() for _ in range(2))})


def roberta_mlm(tied: bool = False) -> nn.Module:
    return transformers.RobertaForMaskedLM(transformers.RobertaConfig(tie_word_embeddings=tied))


def roberta_classifier() -> nn.Module:
    return transformers.RobertaForSequenceClassification(transformers.RobertaConfig())


def vit() -> nn.Module:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536)
    )


class FusedBlock(nn.Module):
    """A ViT block with one matrix for query, key and value: six layers."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.norm2 = nn.LayerNorm(d)
        self.fc1 = nn.Linear(d, 4 * d)
        self.fc2 = nn.Linear(4 * d, d)


class FusedViT(nn.Module):
    """The layout of timm's ViT. The class token and positions are frozen: the papers' 75 and 150
    are the layers without them."""

    def __init__(self, d: int = 384, depth: int = 12) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, d), requires_grad=False)
        self.pos_embed = nn.Parameter(torch.zeros(1, 197, d), requires_grad=False)
        self.patch_embed = nn.Conv2d(3, d, 16, 16)
        self.blocks = nn.Sequential(*(FusedBlock(d) for _ in range(depth)))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, 100)


class Residual(nn.Module):
    def __init__(self, p: int, d: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, p), nn.Conv2d(p, d, 3, bias=False)
        self.norm2, self.conv2 = nn.GroupNorm(4, d), nn.Conv2d(d, d, 3, bias=False)
        self.shortcut = nn.Conv2d(p, d, 1) if p != d else nn.Identity()


class WideResNet(nn.Module):
    """WRN-16-4: three stages of two residual blocks, no list of all blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, bias=False)
        self.stage1 = nn.Sequential(Residual(16, 64), Residual(64, 64))
        self.stage2 = nn.Sequential(Residual(64, 128), Residual(128, 128))
        self.stage3 = nn.Sequential(Residual(128, 256), Residual(256, 256))
        self.norm = nn.GroupNorm(4, 256)
        self.head = nn.Linear(256, 10)


class Tied(nn.Module):
    """A head that shares its weight with the embedding and has a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.layers = nn.ModuleList(FusedBlock(4) for _ in range(3))
        self.head = nn.Linear(4, 10)
        self.head.weight = self.embedding.weight


def on_meta(build: Callable[..., nn.Module], *args: object, **settings: object) -> nn.Module:
    with torch.device("meta"):
        return build(*args, **settings)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def parts_of(model: nn.Module, name: str, **settings: object) -> dict[str, tuple[str, ...]]:
    parts = partition(model, trainable(model), Partition(name, **settings))  # type: ignore[arg-type]
    assert len(dict(parts)) == len(parts), "two groups of one name"
    return dict(parts)


def counts(model: nn.Module) -> tuple[int, int, int]:
    blocks, layers, parameters = (
        len(parts_of(model, name)) for name in ("block_wise", "per_layer", "per_param")
    )
    return blocks, layers, parameters


# --- the papers' numbers of groups (Bu et al. 2023, tables 4, 5 and 7) ---


@pytest.mark.parametrize(
    ("build", "arguments", "expected"),
    [
        (gpt2, (), (12, 76, 149)),
        (gpt2, (True,), (12, 75, 148)),
        (gpt2_medium, (), (24, 148, 293)),
        (gpt2_medium, (True,), (24, 147, 292)),
        (FusedViT, (), (12, 75, 150)),
        (FusedViT, (1024, 24), (24, 147, 294)),
        # Layers: 2 norms and 2 convolutions in each, 3 shortcuts, and 3 outside the blocks.
        (WideResNet, (), (6, 30, 47)),
    ],
)
def test_models_have_the_papers_numbers_of_groups(
    build: Callable[..., nn.Module], arguments: tuple[object, ...], expected: tuple[int, int, int]
):
    assert counts(on_meta(build, *arguments)) == expected


def test_roberta_with_an_untied_masked_lm_head_has_the_papers_numbers_of_groups():
    # Untied, transformers keeps two biases: lm_head.decoder.bias, which is used, and lm_head.bias,
    # which nothing reads. It has no gradient to clip; frozen, it leaves the papers' 103 and 203.
    model = on_meta(roberta_mlm)
    assert counts(model) == (12, 104, 204)
    model.get_parameter("lm_head.bias").requires_grad_(False)
    assert counts(model) == (12, 103, 203)


def test_roberta_with_a_tied_masked_lm_head_counts_the_shared_weight_and_bias_once():
    # The decoder's weight joins the word embeddings, its bias lm_head, its first owner.
    model = on_meta(roberta_mlm, tied=True)
    assert counts(model) == (12, 103, 202)
    layers = parts_of(model, "per_layer")
    assert layers["lm_head"] == ("lm_head.bias",)
    assert "lm_head.decoder" not in layers


def test_roberta_classifier_with_a_pooler_has_the_papers_numbers_of_groups_too():
    # Without a pooler, as transformers builds it now, it has one layer less.
    model = on_meta(roberta_classifier)
    assert counts(model) == (12, 102, 201)
    model.roberta = on_meta(transformers.RobertaModel, model.config, add_pooling_layer=True)
    assert counts(model) == (12, 103, 203)


def test_transformers_vit_has_separate_query_key_and_value_layers():
    # Two more layers in each block; the class token and the positions are trained, in one group.
    model = on_meta(vit)
    assert counts(model) == (12, 100, 200)
    assert parts_of(model, "per_layer")["vit.embeddings"] == (
        "vit.embeddings.cls_token",
        "vit.embeddings.position_embeddings",
    )


# --- what every partition keeps ---

MODELS: dict[str, Callable[..., nn.Module]] = {
    "gpt2": gpt2,
    "gpt2 tied": lambda: gpt2(tied=True),
    "gpt2 lora": gpt2_lora,
    "llama": llama,
    "roberta": roberta_classifier,
    "roberta tied": lambda: roberta_mlm(tied=True),
    "vit": vit,
    "fused vit": FusedViT,
    "wide resnet": WideResNet,
    "tied": Tied,
}
SETTINGS: dict[str, dict[str, object]] = {
    "uniform": {"count": 2},
    "two_group": {"boundary": 1},
    "per_device": {"count": 3},
    "custom": {"patterns": (("*weight*",), ("*bias", "*cls_token", "*position_embeddings"))},
}


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_in_exactly_one_group(name: str):
    model = on_meta(MODELS[name])
    if name in ("gpt2 lora", "llama"):  # they train no bias
        custom: dict[str, object] = {"patterns": (("*",),)}
    else:
        custom = SETTINGS["custom"]
    for how in PARTITIONS:
        parts = parts_of(model, how, **(SETTINGS | {"custom": custom}).get(how, {}))
        grouped = [parameter for own in parts.values() for parameter in own]
        assert sorted(grouped) == sorted(trainable(model)), how
        order = {parameter: i for i, parameter in enumerate(trainable(model))}
        assert all(list(own) == sorted(own, key=order.__getitem__) for own in parts.values()), how
        assert all(parts.values()), how
        if how != "custom":
            firsts = [order[own[0]] for own in parts.values()]
            assert firsts == sorted(firsts), how


def test_flat_is_one_group():
    model = on_meta(gpt2)
    assert parts_of(model, "flat") == {"all": tuple(trainable(model))}


def test_tied_weight_joins_its_first_owner_and_the_rest_of_the_second_stays():
    model = Tied()
    layers = parts_of(model, "per_layer")
    assert layers["embedding"] == ("embedding.weight",)
    assert layers["head"] == ("head.bias",)
    types = parts_of(model, "by_type")
    assert types["embedding"] == ("embedding.weight",)
    assert "head.bias" in types["linear"]
    assert "embedding.weight" in parts_of(model, "block_wise")["layers.0"]


def test_frozen_parameters_are_in_no_group():
    model = on_meta(gpt2)
    for parameter in model.get_submodule("transformer.h.0").parameters():
        parameter.requires_grad_(False)
    assert counts(model) == (11, 76 - 6, 149 - 12)


# --- blocks ---


def test_what_is_outside_the_blocks_joins_the_first_and_the_last():
    blocks = parts_of(on_meta(gpt2), "block_wise")
    assert list(blocks) == [f"transformer.h.{i}" for i in range(12)]
    assert blocks["transformer.h.0"][:2] == ("transformer.wte.weight", "transformer.wpe.weight")
    assert blocks["transformer.h.11"][-2:] == ("transformer.ln_f.bias", "lm_head.weight")
    assert all(n.startswith("transformer.h.5.") for n in blocks["transformer.h.5"])


def test_blocks_are_found_behind_an_adapter_wrapper():
    blocks = parts_of(on_meta(gpt2_lora), "block_wise")
    assert list(blocks) == [f"base_model.model.transformer.h.{i}" for i in range(4)]


def test_a_head_of_adapted_layers_is_no_block():
    model = nn.Module()
    model.layers = nn.ModuleList(FusedBlock(4) for _ in range(2))
    model.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=["fc1", "head.0", "head.2"])
    )
    assert len(find_blocks(adapted)) == 2


def test_experts_stay_within_their_block():
    assert list(find_blocks(on_meta(mixture))) == ["layers.0", "layers.1"]


def test_stages_are_opened():
    resnet = on_meta(transformers.ResNetForImageClassification, transformers.ResNetConfig())
    assert len(find_blocks(resnet)) == 3 + 4 + 6 + 3
    swin = on_meta(transformers.SwinForImageClassification, transformers.SwinConfig())
    assert len(find_blocks(swin)) == 2 + 2 + 6 + 2
    convolutions = nn.Sequential(nn.Conv2d(3, 4, 3), Residual(4, 4), Residual(4, 8), nn.Flatten())
    stages = nn.Sequential(convolutions, nn.Sequential(Residual(8, 8)), nn.Linear(8, 2))
    assert list(find_blocks(stages)) == ["0.1", "0.2", "1.0"]


def test_layers_beside_the_blocks_are_none():
    layers = [nn.Conv2d(3, 4, 3), Residual(4, 4), Residual(4, 8), nn.Flatten(), nn.Linear(8, 2)]
    assert list(find_blocks(nn.Sequential(*layers))) == ["1", "2"]


def test_a_wrapped_model_is_no_block():
    wrapped = on_meta(lambda: nn.Sequential(gpt2(), nn.Linear(4, 2)))
    assert list(find_blocks(wrapped)) == [f"0.transformer.h.{i}" for i in range(12)]
    gate = nn.ModuleDict({"down": nn.Linear(4, 2), "up": nn.Linear(2, 4)})
    unit = nn.ModuleDict({"main": nn.Sequential(nn.Linear(4, 4), gate), "out": nn.Linear(4, 4)})
    unit["in"] = nn.Linear(4, 4)
    assert list(find_blocks(nn.Sequential(nn.Sequential(unit)))) == ["0.0"]


@pytest.mark.parametrize("family", ["T5ForConditionalGeneration", "BartForConditionalGeneration"])
def test_encoder_and_decoder_blocks_are_one_sequence(family: str):
    cls = getattr(transformers, family)
    if family.startswith("T5"):
        config = transformers.T5Config(num_layers=3, num_decoder_layers=2)
    else:
        config = transformers.BartConfig(encoder_layers=3, decoder_layers=2)
    model = on_meta(cls, config)
    names = list(parts_of(model, "block_wise"))
    assert ["encoder" in name for name in names] == [True] * 3 + [False] * 2


@pytest.mark.parametrize("count", range(1, 13))
def test_uniform_groups_differ_by_one_block_at_most(count: int):
    groups = parts_of(on_meta(FusedViT, 8), "uniform", count=count)
    sizes = [len({n.split(".")[1] for n in own if "blocks" in n}) for own in groups.values()]
    assert len(sizes) == count
    assert sum(sizes) == 12
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_uniform_names_the_blocks_and_equals_block_wise_at_the_finest():
    model = on_meta(FusedViT, 8)
    groups = parts_of(model, "uniform", count=5)
    assert list(groups) == [
        "blocks 0 to 2",
        "blocks 3 to 5",
        "blocks 6 to 7",
        "blocks 8 to 9",
        "blocks 10 to 11",
    ]
    finest = parts_of(model, "uniform", count=12)
    assert list(finest.values()) == list(parts_of(model, "block_wise").values())


@pytest.mark.parametrize("boundary", [2, 4, 6, 8, 10])
def test_two_group_splits_at_the_boundary(boundary: int):
    model = on_meta(gpt2)
    groups = parts_of(model, "two_group", boundary=boundary)
    assert list(groups) == [f"blocks 0 to {boundary - 1}", f"blocks {boundary} to 11"]
    second = list(groups.values())[1]
    assert second[0] == f"transformer.h.{boundary}.ln_1.weight"
    assert second[-1] == "lm_head.weight"
    if boundary == 6:
        assert groups == parts_of(model, "uniform", count=2)


# --- types and devices ---


def test_types_are_those_of_the_layers():
    assert list(parts_of(on_meta(gpt2), "by_type")) == ["embedding", "norm", "linear"]
    assert list(parts_of(on_meta(WideResNet), "by_type")) == ["convolution", "norm", "linear"]
    assert list(parts_of(on_meta(llama), "by_type")) == ["embedding", "linear", "norm"]
    types = parts_of(on_meta(vit), "by_type")
    assert types["other"] == ("vit.embeddings.cls_token", "vit.embeddings.position_embeddings")
    assert types["convolution"] == (
        "vit.embeddings.patch_embeddings.projection.weight",
        "vit.embeddings.patch_embeddings.projection.bias",
    )


@pytest.mark.parametrize("count", [1, 2, 4, 16])
def test_devices_hold_consecutive_whole_blocks_of_like_size(count: int):
    model = on_meta(gpt2_medium)
    parameters = trainable(model)
    groups = parts_of(model, "per_device", count=count)
    assert list(groups) == [f"device {k}" for k in range(count)]
    assert [n for own in groups.values() for n in own] == list(parameters)
    blocks = [{n.split(".")[2] for n in own if ".h." in n} for own in groups.values()]
    assert all(blocks)
    assert sum(map(len, blocks)) == 24, "a block was cut"
    sizes = [sum(parameters[n].numel() for n in own) for own in groups.values()]
    ends = ("transformer.wte.", "transformer.wpe.", "transformer.h.0.")
    largest = sum(p.numel() for n, p in parameters.items() if n.startswith(ends))
    assert max(sizes) <= max(sum(sizes) / count, largest) * 1.1


def test_devices_are_cut_as_evenly_as_layers_allow():
    sizes = [5, 1, 1, 1, 4, 2, 2]
    model = nn.Sequential(*(nn.Linear(1, size, bias=False) for size in sizes))
    groups = parts_of(model, "per_device", count=3)
    assert list(groups.values()) == [
        ("0.weight", "1.weight"),
        ("2.weight", "3.weight", "4.weight"),
        ("5.weight", "6.weight"),
    ]
    assert [len(own) for own in parts_of(model, "per_device", count=7).values()] == [1] * 7


def test_bare_parameters_of_the_model_itself_are_a_layer():
    model = nn.Module()
    model.scale = nn.Parameter(torch.ones(1))
    model.linear = nn.Linear(2, 2)
    assert parts_of(model, "per_layer")["(root)"] == ("scale",)


# --- patterns ---


@pytest.mark.parametrize(("name", "word"), [("custom", "group"), ("per_device", "device")])
def test_patterns_keep_their_order(name: str, word: str):
    patterns = [["head.*", "layers.2.*"], ["embedding.*", "layers.[01].*"]]  # as of a config file
    groups = parts_of(Tied(), name, patterns=patterns)
    assert list(groups) == [f"{word} 0", f"{word} 1"]
    assert groups[f"{word} 0"][-1] == "head.bias"
    assert groups[f"{word} 1"][0] == "embedding.weight"


# --- thresholds ---


@pytest.mark.parametrize("name", PARTITIONS)
def test_one_threshold_is_the_sensitivity_of_the_whole(name: str):
    model = on_meta(FusedViT, 8)
    custom: dict[str, object] = {"patterns": (("*weight",), ("*bias",))}
    parts = partition(
        model,
        trainable(model),
        Partition(name, **(SETTINGS | {"custom": custom}).get(name, {})),  # type: ignore[arg-type]
    )
    groups = assign(parts, threshold=0.3)
    assert sensitivity([g.threshold for g in groups]) == pytest.approx(0.3, rel=1e-12)
    assert {g.threshold for g in groups} == {0.3 / math.sqrt(len(parts))}


def test_thresholds_go_to_the_groups_in_order():
    parts = (("first", ("a", "b")), ("second", ("c",)))
    assert assign(parts, thresholds=[3.0, 4.0]) == (
        Group("first", ("a", "b"), 3.0),
        Group("second", ("c",), 4.0),
    )
    assert sensitivity([3.0, 4.0]) == 5.0


# --- errors say what was got, what was expected, what to type ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "layer"}, "partition is 'layer'; expected one of flat, per_layer"),
        ({"name": "uniform"}, "'uniform' got no setting; expected count=4"),
        ({"name": "flat", "count": 2}, "'flat' got count=2; expected no setting"),
        ({"name": "uniform", "boundary": 2}, "got boundary=2; expected count=4"),
        ({"name": "uniform", "count": 0}, "count is 0; expected an integer >= 1: count=4"),
        ({"name": "uniform", "count": True}, "count is True; expected an integer"),
        ({"name": "two_group", "boundary": 1.5}, "boundary is 1.5; expected an integer"),
        ({"name": "per_device"}, "no setting; expected count=4 or else patterns="),
        (
            {"name": "per_device", "count": 2, "patterns": (("*",),)},
            "got count=2, patterns=(('*',),); expected count=4 or else patterns=",
        ),
        ({"name": "custom", "patterns": ("h.*",)}, "patterns are ('h.*',); expected a list of"),
        ({"name": "custom", "patterns": "*"}, "patterns are '*'; expected a list of patterns for"),
        ({"name": "custom", "patterns": ()}, "patterns are (); expected a list of patterns for"),
        ({"name": "custom", "patterns": (("*",), ())}, "expected a list of patterns for each"),
    ],
)
def test_impossible_partitions_are_refused(settings: dict[str, object], message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        Partition(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"name": "uniform", "count": 4},
            "count is 4; expected 1 to 3, for 3 blocks were found: count=3",
        ),
        ({"name": "uniform", "count": 10**12}, "expected 1 to 3, for 3 blocks were found"),
        (
            {"name": "two_group", "boundary": 3},
            "boundary is 3; expected 1 to 2, for 3 blocks were found: boundary=2",
        ),
        (
            {"name": "per_device", "count": 21},
            "count is 21 devices; expected 1 to 20, for the model has 20 layers",
        ),
        (
            {"name": "custom", "patterns": (("layers.*",), ("head.*",))},
            "in no group: embedding.weight; expected each to match the patterns of exactly one of "
            "group 0, group 1: add a pattern, such as 'embedding.weight'",
        ),
        (
            {"name": "custom", "patterns": (("*",), ("head.*", "*.bias"), ("nothing",))},
            "in several groups: layers.0.norm1.bias (group 0, group 1), ",
        ),
        (
            {"name": "custom", "patterns": (("*",), ("lm_head.*",))},
            "groups without a trainable parameter: group 1 ['lm_head.*']; expected at least one",
        ),
    ],
)
def test_partitions_that_do_not_fit_the_model_are_refused(
    settings: dict[str, object], message: str
):
    model = Tied()
    how = Partition(**settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=re.escape(message)):
        partition(model, trainable(model), how)


@pytest.mark.parametrize("name", ["block_wise", "uniform", "two_group"])
def test_a_model_without_blocks_is_refused(name: str):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    message = f"partition {name!r} needs blocks, and none .* in Sequential; .* use per_layer"
    with pytest.raises(ValueError, match=message):
        parts_of(model, name, **SETTINGS.get(name, {}))


def test_one_block_is_enough_but_for_two_groups():
    assert len(parts_of(on_meta(gpt2, n_layer=1), "block_wise")) == 1
    with pytest.raises(ValueError, match="for 1 blocks were found: use flat"):
        parts_of(on_meta(gpt2, n_layer=1), "two_group", boundary=1)


def test_nothing_to_group_is_refused():
    frozen = copy.deepcopy(Tied()).requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameter to group"):
        parts_of(frozen, "flat")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "got neither of threshold and thresholds; expected exactly one: threshold=0.1"),
        ({"threshold": 1.0, "thresholds": [1.0, 1.0]}, "got both of threshold and thresholds"),
        ({"thresholds": [1.0]}, "got 1 thresholds for 2 groups (first, second); expected one for"),
        ({"threshold": 0.0}, "clipping threshold of group 'first' is 0.0"),
        ({"thresholds": [1.0, math.inf]}, "clipping threshold of group 'second' is inf"),
    ],
)
def test_impossible_thresholds_are_refused(given: dict[str, object], message: str):
    parts = (("first", ("a",)), ("second", ("b",)))
    with pytest.raises(ValueError, match=re.escape(message)):
        assign(parts, **given)  # type: ignore[arg-type]
