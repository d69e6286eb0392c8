"""Very small instances of architectures of transformers, in float64, to be clipped exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
)

from tests.privacy.reference import equals_loop
from tests.privacy.small_models import Case

VOCAB = 24
RECORDS = 3
LENGTH = 6

# What families call the same numbers; each configuration takes those that it knows.
_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_labels": 3,
}
_IMAGES = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "image_size": 8,
    "patch_size": 4,
    "num_labels": 3,
}


@contextmanager
def in_double() -> Iterator[None]:
    """Float64 where a model asks for float32: norms and softmaxes do, whatever their input is."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(Tensor, "float", Tensor.double)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


_AUTO = {
    "causal": AutoModelForCausalLM,
    "masked": AutoModelForMaskedLM,
    "image": AutoModelForImageClassification,
    "vision": AutoModel,
}
_SWIN = {"embed_dim": 4, "depths": [1, 1], "num_heads": [1, 2], "window_size": 2, "patch_size": 1,
         "image_size": 4, "num_attention_heads": None, "hidden_size": None,
         "num_hidden_layers": None}  # fmt: skip

# How each is built: a key of `_AUTO`, and settings beyond the common ones.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("causal", {}),
    "opt": ("causal", {"ffn_dim": 12, "word_embed_proj_dim": 8}),
    "falcon": ("causal", {"head_dim": None, "new_decoder_architecture": False, "alibi": False}),
    "gemma3_text": ("causal", {"query_pre_attn_scalar": 4, "sliding_window": 4}),
    "mixtral": ("causal", {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "gpt_oss": (
        "causal",
        {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 4},
    ),
    "mamba": ("causal", {"state_size": 3, "time_step_rank": 2}),
    "deberta": (
        "masked",
        {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
        | {"max_relative_positions": 8, "position_biased_input": False},
    ),
    "swin": ("image", _SWIN),
    "siglip_vision_model": ("vision", {}),
    "convnext": (
        "image",
        {"hidden_sizes": [4, 8], "depths": [1, 1], "num_stages": 2}
        | {"patch_size": 2, "image_size": 16},
    ),
}


# Of which tests want the names of modules alone.
_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("causal", {}),
    "modernbert": ("masked", {"cls_token_id": 1, "sep_token_id": 2}),
}


def undropped(config: Any) -> Any:
    """A configuration whose dropout is zero everywhere, as float64 comparisons need."""
    for name, value in list(vars(config).items()):
        if isinstance(value, float) and any(part in name for part in ("drop", "pdrop")):
            setattr(config, name, 0.0)
        elif hasattr(value, "to_dict"):
            undropped(value)
    return config


def build(name: str) -> Case:
    torch.manual_seed(0)
    kind, own = {**ARCHITECTURES, **_OTHERS}[name]
    image = kind in ("image", "vision")
    settings = {**(_IMAGES if image else _COMMON), **own}
    config = AutoConfig.for_model(name, **{k: v for k, v in settings.items() if v is not None})
    undropped(config)
    config._experts_implementation = "eager"  # the others take no float64
    with in_double():
        model = _AUTO[kind].from_config(config, attn_implementation="eager").double().train()
    shake(model)
    ids = torch.randint(3, VOCAB, (RECORDS, LENGTH))
    if image:
        size = own.get("image_size", 8)
        data = {"pixel_values": torch.randn(RECORDS, 3, size, size).double()}
    else:
        data = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if kind == "masked":
            data["attention_mask"][1, -2:] = 0
    return Case(model, data, _losses(kind))


def shake(model: nn.Module, by: float = 0.2) -> None:
    """Move trained parameters, so that every term of a norm matters."""
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(by * torch.randn_like(p))


def clip_and_compare(case: Case) -> None:
    with in_double():
        equals_loop(case.model, case.losses_of, case.batch, "bk").close()


def _losses(kind: str) -> Callable[[nn.Module, dict[str, Tensor]], Tensor]:
    def losses(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
        output = model(**data, **({"use_cache": False} if kind == "causal" else {}))
        if kind == "image":
            return F.cross_entropy(
                output.logits, torch.zeros(len(output.logits)).long(), reduction="none"
            )
        if kind == "vision":
            return output.pooler_output.square().sum(1)
        ids = data["input_ids"].roll(1, 1)
        return F.cross_entropy(output.logits.mT, ids, reduction="none").mean(1)

    return losses
