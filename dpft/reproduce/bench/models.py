"""The benchmark's models, random weights, with random inputs and per-record losses.

Built offline from configurations. Dropout is off, attention is what transformers chooses (scaled
dot product), and no key-value cache is kept: all as one would train.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpft.privacy.token_losses import IGNORED, token_losses
from dpft.reproduce.bench.catalog import MODELS

CLASSES = 10
# Share of positions that the masked language model predicts.
_MASKED = 0.15
_GPT2_SIZES = {
    "gpt2": (768, 12, 12),
    "gpt2-medium": (1024, 24, 16),
    "gpt2-large": (1280, 36, 20),
    "gpt2-xl": (1600, 48, 25),
}

# Tokens of a record that is used for what does not depend on their number.
_SHORT = 8

Inputs = Mapping[str, Tensor]


class _Draw(Protocol):
    def __call__(self, batch: int, *, short: bool = False) -> Inputs:
        """Inputs of ``batch`` records; ``short``: of a few tokens each."""


@dataclass(frozen=True)
class Workload:
    """A model in training mode with everything that a step needs.

    Attributes:
        model: the module.
        inputs: draws a batch, the same one every time.
        losses: ``losses(model, inputs)`` of shape ``(B,)``, by PyTorch's functions; takes the model
            since peers wrap it.
        own_losses: the same as dpft's runs compute them.
        blocks: number of repeated blocks, for styles that divide them.
    """

    model: nn.Module
    inputs: _Draw
    losses: Callable[[nn.Module, Inputs], Tensor]
    own_losses: Callable[[nn.Module, Inputs], Tensor]
    blocks: int


def build(
    name: str, *, length: int | None, untied: bool, seed: int, device: str, dtype: torch.dtype
) -> Workload:
    """Build a model of `dpft.reproduce.bench.catalog.MODELS`.

    Its records have ``length`` tokens (None: images), weights and inputs follow from the seed.
    """
    torch.manual_seed(seed)
    with torch.device(device):
        model, blocks = _BUILDERS[name](name, untied)
    model = model.to(device=device, dtype=dtype).train()
    draw, losses, own_losses = _work(name)

    def inputs(batch: int, *, short: bool = False) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        tokens = min(length, _SHORT) if short and length is not None else length
        drawn = draw(model, batch, tokens, generator)
        return {
            key: value.to(device, dtype if value.is_floating_point() else value.dtype)
            for key, value in drawn.items()
        }

    return Workload(model, inputs, losses, own_losses, blocks)


def _gpt2(name: str, untied: bool) -> tuple[nn.Module, int]:
    from transformers import GPT2Config, GPT2LMHeadModel

    if name == "tiny":
        from dpft.models.load import BUNDLED

        config = GPT2Config.from_pretrained(str(BUNDLED / name), trust_remote_code=False)
        config.tie_word_embeddings = not untied
    else:
        d, layers, heads = _GPT2_SIZES[name]
        config = GPT2Config(n_embd=d, n_layer=layers, n_head=heads, tie_word_embeddings=not untied)
    for dropout in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        setattr(config, dropout, 0.0)
    return GPT2LMHeadModel(config), config.n_layer


def _llama(name: str, untied: bool) -> tuple[nn.Module, int]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=not untied,
        # The vocabulary's special tokens do not matter to random tokens.
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config), config.num_hidden_layers


def _roberta(name: str, untied: bool) -> tuple[nn.Module, int]:
    from transformers import RobertaConfig, RobertaForMaskedLM, RobertaForSequenceClassification

    config = RobertaConfig(
        vocab_size=50265,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        tie_word_embeddings=not untied,
    )
    config.num_labels = 2
    masked = name.endswith("-mlm")
    model = RobertaForMaskedLM(config) if masked else RobertaForSequenceClassification(config)
    return model, config.num_hidden_layers


def _vit(name: str, untied: bool) -> tuple[nn.Module, int]:
    from transformers import ViTConfig, ViTForImageClassification

    d, heads = (384, 6) if name == "vit-small" else (768, 12)
    config = ViTConfig(hidden_size=d, num_attention_heads=heads, intermediate_size=4 * d)
    config.num_labels = CLASSES
    return ViTForImageClassification(config), config.num_hidden_layers


def _wrn(name: str, untied: bool) -> tuple[nn.Module, int]:
    from dpft.models.wrn import WideResNet

    # Three stages of two blocks each: 16 = 6 * 2 + 4 layers.
    return WideResNet(), 6


_BUILDERS: Mapping[str, Callable[[str, bool], tuple[nn.Module, int]]] = MappingProxyType(
    {
        **dict.fromkeys(("tiny", *_GPT2_SIZES), _gpt2),
        "smollm2-135m": _llama,
        **dict.fromkeys(("roberta-base", "roberta-base-mlm"), _roberta),
        **dict.fromkeys(("vit-small", "vit-base"), _vit),
        "wrn16-4": _wrn,
    }
)


def _work(
    name: str,
) -> tuple[Callable[..., dict[str, Tensor]], Callable[..., Tensor], Callable[..., Tensor]]:
    """How a model's inputs are drawn and its losses computed, by PyTorch and by dpft."""
    if name == "roberta-base":
        return _labelled_tokens, _classified, _classified
    if MODELS[name].length is None:
        return _images, _images_classified, _images_classified
    draw, losses = (
        (_masked_tokens, _masked) if name == "roberta-base-mlm" else (_tokens, _next_token)
    )
    return draw, losses, partial(losses, entropy=token_losses)


def _random_tokens(model: Any, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randint(5, model.config.vocab_size, shape, generator=generator)


def _tokens(model: Any, batch: int, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    ids = _random_tokens(model, (batch, length), generator)
    # The last token predicts nothing.
    labels = torch.cat([ids[:, 1:], torch.full((batch, 1), IGNORED)], dim=1)
    # One row per record: positions that are broadcast over the batch hide whose gradient is whose.
    positions = torch.arange(length).repeat(batch, 1)
    return {"input_ids": ids, "position_ids": positions, "labels": labels}


def _masked_tokens(
    model: Any, batch: int, length: int, generator: torch.Generator
) -> dict[str, Tensor]:
    ids = _random_tokens(model, (batch, length), generator)
    labels = torch.full_like(ids, IGNORED)
    count = max(1, round(_MASKED * length))
    labels[:, :count] = _random_tokens(model, (batch, count), generator)
    return {"input_ids": ids, "labels": labels}


def _labelled_tokens(
    model: Any, batch: int, length: int, generator: torch.Generator
) -> dict[str, Tensor]:
    ids = _random_tokens(model, (batch, length), generator)
    labels = torch.randint(model.config.num_labels, (batch,), generator=generator)
    return {"input_ids": ids, "labels": labels}


def _images(model: Any, batch: int, length: None, generator: torch.Generator) -> dict[str, Tensor]:
    config = getattr(model, "config", None)
    side = 32 if config is None else config.image_size
    return {
        "images": torch.randn(batch, 3, side, side, generator=generator),
        "labels": torch.randint(CLASSES, (batch,), generator=generator),
    }


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each token, ``(B, T, V)`` to ``(B, T)``."""
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED
    ).view_as(labels)


Entropy = Callable[[Tensor, Tensor], Tensor]


def _per_token(logits: Tensor, labels: Tensor, entropy: Entropy) -> Tensor:
    """Mean cross entropy over each record's labelled tokens, ``(B, T, V)`` to ``(B,)``."""
    return entropy(logits, labels).sum(1) / (labels != IGNORED).sum(1)


def _next_token(model: nn.Module, inputs: Inputs, entropy: Entropy = _cross_entropy) -> Tensor:
    logits = model(
        input_ids=inputs["input_ids"], position_ids=inputs["position_ids"], use_cache=False
    ).logits
    return _per_token(logits, inputs["labels"], entropy)


def _masked(model: nn.Module, inputs: Inputs, entropy: Entropy = _cross_entropy) -> Tensor:
    return _per_token(model(input_ids=inputs["input_ids"]).logits, inputs["labels"], entropy)


def _classified(model: nn.Module, inputs: Inputs) -> Tensor:
    logits = model(input_ids=inputs["input_ids"]).logits
    return F.cross_entropy(logits, inputs["labels"], reduction="none")


def _images_classified(model: nn.Module, inputs: Inputs) -> Tensor:
    out = model(inputs["images"])
    return F.cross_entropy(getattr(out, "logits", out), inputs["labels"], reduction="none")
