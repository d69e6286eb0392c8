"""Very small instances of architectures of transformers, in float64, to be clipped exactly."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForSpeechSeq2Seq,
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


@dataclass(frozen=True)
class Architecture:
    """How a model is built and what its records are.

    ``kind`` is a key of `_AUTO`; ``targets`` are what LoRA adapts.
    """

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    model_type: str = ""


def _causal(*targets: str, **settings: Any) -> Architecture:
    return Architecture("causal", settings, targets or ("q_proj", "v_proj"))


def _masked(*targets: str, **settings: Any) -> Architecture:
    return Architecture("masked", settings, targets or ("query", "value"))


def _image(*targets: str, **settings: Any) -> Architecture:
    return Architecture("image", settings, targets or ("query", "value"))


_AUTO = {
    "causal": AutoModelForCausalLM,
    "masked": AutoModelForMaskedLM,
    "classifier": AutoModelForSequenceClassification,
    "image": AutoModelForImageClassification,
    "vision": AutoModel,
    "seq2seq": AutoModelForSeq2SeqLM,
    "speech": AutoModelForSpeechSeq2Seq,
}
_GEMMA = {"query_pre_attn_scalar": 4, "sliding_window": 4}
_MOE = {"num_experts": 3, "num_local_experts": 3, "num_experts_per_tok": 2}
_SWIN: dict[str, Any] = {
    "embed_dim": 4,
    "depths": [1, 1],
    "num_heads": [1, 2],
    "window_size": 2,
    "patch_size": 1,
    "image_size": 4,
    "num_attention_heads": None,
    "hidden_size": None,
    "num_hidden_layers": None,
}
_CONVNEXT: dict[str, Any] = {
    "hidden_sizes": [4, 8],
    "depths": [1, 1],
    "num_stages": 2,
    "patch_size": 2,
    "image_size": 16,
}

ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": _causal("c_attn", n_positions=16),
    "gpt_neo": _causal(attention_types=[[["global", "local"], 1]], window_size=4),
    "gptj": _causal(rotary_dim=2, n_positions=16),
    "gpt_neox": _causal("query_key_value"),
    "gpt_bigcode": _causal("c_attn", n_positions=16),
    "opt": _causal(ffn_dim=12, word_embed_proj_dim=8),
    "bloom": _causal("query_key_value"),
    "falcon": _causal(
        "query_key_value", head_dim=None, new_decoder_architecture=False, alibi=False
    ),
    "mpt": _causal("Wqkv", d_model=8, n_heads=2, n_layers=2, max_seq_len=16),
    "phi": _causal(),
    "phi3": _causal("qkv_proj"),
    "llama": _causal(),
    "mistral": _causal(),
    "mixtral": _causal(**_MOE),
    "qwen2": _causal(),
    "qwen2_moe": _causal(**_MOE, moe_intermediate_size=6, shared_expert_intermediate_size=6),
    "qwen3": _causal(),
    "qwen3_moe": _causal(**_MOE, moe_intermediate_size=6),
    "gemma": _causal(),
    "gemma2": _causal(**_GEMMA),
    "gemma3_text": _causal(**_GEMMA),
    "olmo": _causal(),
    "olmo2": _causal(),
    "olmoe": _causal(**_MOE),
    "cohere": _causal(),
    "cohere2": _causal(sliding_window=4),
    "nemotron": _causal(),
    "stablelm": _causal(),
    "starcoder2": _causal(),
    "granite": _causal(),
    "smollm3": _causal(),
    "glm": _causal(),
    "helium": _causal(),
    "gpt_oss": _causal(num_local_experts=3, num_experts_per_tok=2, sliding_window=4),
    "biogpt": _causal(),
    "xglm": _causal(d_model=8, ffn_dim=12, num_layers=2, attention_heads=2, layerdrop=0.0),
    "codegen": _causal(
        "qkv_proj", n_positions=16, rotary_dim=2, num_attention_heads=4, hidden_size=16
    ),
    "mamba": _causal("in_proj", state_size=3, time_step_rank=2),
    "mamba2": _causal("in_proj", state_size=3, num_heads=4, head_dim=4, n_groups=1, chunk_size=4),
    "rwkv": _causal("key", attention_hidden_size=8, context_length=16),
    "recurrent_gemma": _causal(
        lru_width=8, attention_window_size=4, block_types=["recurrent", "attention"]
    ),
    "jamba": _causal(
        **_MOE,
        mamba_d_state=3,
        mamba_dt_rank=2,
        use_mamba_kernels=False,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
    ),
    "bert": _masked(),
    "roberta": _masked(),
    "xlm-roberta": _masked(),
    "camembert": _masked(),
    "electra": _masked(embedding_size=8),
    "albert": _masked(embedding_size=6),
    "distilbert": _masked("q_lin", "v_lin", dim=8, n_heads=2, n_layers=2, hidden_dim=12),
    "deberta": _masked(
        "in_proj",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        max_relative_positions=8,
        position_biased_input=False,
    ),
    "deberta-v2": _masked(
        "query_proj",
        "value_proj",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_buckets=4,
        max_relative_positions=8,
        position_biased_input=False,
    ),
    "mpnet": _masked("q", "v"),
    "modernbert": _masked(
        "Wqkv", global_attn_every_n_layers=2, local_attention=4, cls_token_id=1, sep_token_id=2
    ),
    "longformer": _masked(attention_window=[4, 4], max_position_embeddings=20),
    "funnel": Architecture(
        "masked",
        {
            "num_hidden_layers": None,
            "block_sizes": [1, 1],
            "d_model": 8,
            "n_head": 2,
            "d_head": 4,
            "d_inner": 12,
            "num_decoder_layers": 1,
        },
        ("q_head", "v_head"),
    ),
    "xlnet": Architecture(
        "classifier",
        {
            "max_position_embeddings": None,
            "d_model": 8,
            "n_layer": 2,
            "n_head": 2,
            "d_inner": 12,
            "d_head": 4,
        },
        ("layer_1",),
    ),
    "nystromformer": _masked(num_landmarks=6, segment_means_seq_len=6, conv_kernel_size=3),
    "roformer": _masked(embedding_size=8),
    "vit": _image("q_proj", "v_proj"),
    "beit": _image(
        "q_proj", "v_proj", use_relative_position_bias=True, use_shared_relative_position_bias=False
    ),
    "data2vec-vision": _image(use_relative_position_bias=True),
    "dinov2": _image("q_proj", "v_proj"),
    "swin": _image("q_proj", "v_proj", **_SWIN),
    "swinv2": _image(**_SWIN),
    "convnext": _image("pwconv1", **_CONVNEXT),
    "convnextv2": _image("pwconv1", **_CONVNEXT),
    "clip": Architecture(
        "image", {"vision_config": {**_IMAGES, "projection_dim": 8}}, ("q_proj", "v_proj")
    ),
    "siglip": Architecture(
        "image", {"vision_config": _IMAGES, "text_config": {}}, ("q_proj", "v_proj")
    ),
    "siglip pooled": Architecture("vision", {}, ("q_proj", "v_proj"), "siglip_vision_model"),
    "poolformer": _image(
        "conv1",
        hidden_sizes=[4, 8],
        depths=[1, 1],
        num_encoder_blocks=2,
        patch_sizes=[3, 3],
        strides=[2, 2],
        padding=[1, 1],
    ),
    "t5": Architecture(
        "seq2seq",
        {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2},
        ("q", "v"),
    ),
    "bart": Architecture(
        "seq2seq",
        {
            "d_model": 8,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 12,
            "decoder_ffn_dim": 12,
            "scale_embedding": True,
        },
        ("q_proj", "v_proj"),
    ),
    "whisper": Architecture(
        "speech",
        {
            "d_model": 8,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 12,
            "decoder_ffn_dim": 12,
            "num_mel_bins": 4,
            "max_source_positions": 6,
            "max_target_positions": 8,
        },
        ("q_proj", "v_proj"),
    ),
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
    """A model in float64, its losses, and records."""
    torch.manual_seed(0)
    chosen = ARCHITECTURES[name]
    kind = chosen.kind
    image = kind in ("image", "vision")
    settings = {**(_IMAGES if image else _COMMON), **chosen.settings}
    config = AutoConfig.for_model(
        chosen.model_type or name, **{k: v for k, v in settings.items() if v is not None}
    )
    undropped(config)
    config._experts_implementation = "eager"  # the others take no float64
    if kind == "speech":
        config.decoder_start_token_id = 1
    with in_double():
        model = _AUTO[kind].from_config(config, attn_implementation="eager").double().train()
    shake(model)
    ids = torch.randint(3, VOCAB, (RECORDS, LENGTH))
    if kind == "speech":
        data = {"input_features": torch.randn(RECORDS, 4, 12).double(), "decoder_input_ids": ids}
    elif image:
        size = chosen.settings.get("image_size", 8)
        data = {"pixel_values": torch.randn(RECORDS, 3, size, size).double()}
    else:
        data = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if kind in ("masked", "classifier"):
            data["attention_mask"][1, -2:] = 0
        if kind == "seq2seq":
            data["decoder_input_ids"] = ids.flip(1)
    return Case(model, data, _losses(kind))


def with_lora(name: str, case: Case) -> Case:
    """The same with LoRA on some projections, whose matrices are all away from zero."""
    targets = list(ARCHITECTURES[name].targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a transposed layer
        case.model = get_peft_model(case.model, LoraConfig(r=2, target_modules=targets)).double()
    shake(case.model)
    return case


def shake(model: nn.Module) -> None:
    """Move trained parameters, so that every term of a norm matters."""
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.2 * torch.randn_like(p))


def clip_and_compare(case: Case, tolerance: float = 1e-10) -> list[str]:
    """Two batches against one backward per record; how the norms were computed."""
    with in_double():
        clipper = equals_loop(case.model, case.losses_of, case.batch, "bk", tolerance=tolerance)
        clipper.close()
    return [entry["form"] for entry in clipper.explain()]


def _losses(kind: str) -> Callable[[nn.Module, dict[str, Tensor]], Tensor]:
    def losses(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
        extra = {"use_cache": False} if kind in ("causal", "seq2seq", "speech") else {}
        output = model(**data, **extra)
        if kind in ("image", "classifier"):
            return F.cross_entropy(
                output.logits, torch.zeros(len(output.logits)).long(), reduction="none"
            )
        if kind == "vision":
            return output.pooler_output.square().sum(1)
        ids = data.get("decoder_input_ids", data.get("input_ids"))
        return F.cross_entropy(
            output.logits.transpose(1, 2), ids.roll(1, 1), reduction="none"
        ).mean(1)

    return losses
