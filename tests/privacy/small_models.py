"""Small instances of the papers' architectures in float64, with inputs and per-record losses."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from dpft.models.wrn import WideResNetConfig, WideResNetForImageClassification

Data = dict[str, Tensor]
VOCAB = 23


@dataclass
class Case:
    """A model, a batch of records, and one loss per record."""

    model: nn.Module
    data: Data
    losses: Callable[[nn.Module, Data], Tensor]

    @property
    def batch(self) -> int:
        return len(next(iter(self.data.values())))

    def rows(self, index) -> Data:
        return {name: tensor[index] for name, tensor in self.data.items()}

    def record_loss(self, i: int) -> Tensor:
        return self.losses(self.model, self.rows(slice(i, i + 1)))[0]

    def losses_of(self, rows) -> Tensor:
        return self.losses(self.model, self.rows(rows))

    def all_losses(self) -> Tensor:
        return self.losses(self.model, self.data)


class Parts(nn.Module):
    """A module of what it is given by name."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def shaken(model: nn.Module) -> nn.Module:
    """In float64, with larger weights, so that every term of a norm matters."""
    model = model.double().train()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model


def tokens(batch: int = 4, length: int = 7, seed: int = 1) -> Data:
    """Right-padded tokens in which tokens repeat, with a different length for each record."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB // 2, (batch, length), generator=g)
    mask = torch.ones_like(ids)
    for i in range(batch):
        mask[i, length - i % (length - 2) :] = 0
    return {"input_ids": torch.where(mask == 1, ids, 1), "attention_mask": mask}


def token_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    ce = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return (ce * weights).sum(1) / weights.sum(1).clamp(min=1)


def causal_losses(model: nn.Module, data: Data) -> Tensor:
    mask = data["attention_mask"]
    positions = torch.arange(mask.shape[1]).expand_as(mask)
    logits = model(**data, position_ids=positions, use_cache=False).logits
    weights = mask[:, 1:].to(logits.dtype)
    return token_loss(logits[:, :-1], data["input_ids"][:, 1:], weights)


def masked_losses(model: nn.Module, data: Data) -> Tensor:
    logits = model(**data).logits
    return token_loss(logits, data["input_ids"].flip(1), data["attention_mask"].to(logits.dtype))


def class_losses(model: nn.Module, data: Data) -> Tensor:
    inputs = {name: tensor for name, tensor in data.items() if name != "labels"}
    output = model(**inputs)
    logits = output if isinstance(output, Tensor) else output.logits
    return F.cross_entropy(logits, data["labels"], reduction="none")


def gpt2(tied: bool, dropout: float = 0.0, layers: int = 2) -> Case:
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=16, n_embd=12, n_layer=layers, n_head=3, bos_token_id=0,
        eos_token_id=0, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        tie_word_embeddings=tied,
    )  # fmt: skip
    return Case(shaken(GPT2LMHeadModel(config)), tokens(), causal_losses)


SIZES = {"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 3}
TEXTS = {**SIZES, "vocab_size": VOCAB, "max_position_embeddings": 16, "pad_token_id": 1}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def llama(tied: bool) -> Case:
    """SmolLM2's architecture: RMSNorm, gated MLP, fewer key-value heads than query heads."""
    config = LlamaConfig(**TEXTS, num_key_value_heads=1, tie_word_embeddings=tied)
    model = shaken(LlamaForCausalLM(config))
    # Its own norms compute in float32 whatever they are given; torch's do not.
    for name, module in list(model.named_modules()):
        if isinstance(module, LlamaRMSNorm):
            norm = nn.RMSNorm(12, eps=module.variance_epsilon, dtype=torch.float64)
            norm.load_state_dict(module.state_dict())
            model.set_submodule(name, norm)
    return Case(model, tokens(), causal_losses)


def _roberta(tied: bool) -> RobertaConfig:
    sizes = {**TEXTS, **NO_DROPOUT, "type_vocab_size": 1, "num_labels": 3}
    return RobertaConfig(**sizes, tie_word_embeddings=tied)


def roberta_mlm(tied: bool) -> Case:
    model = shaken(RobertaForMaskedLM(_roberta(tied)))
    if not tied:  # the decoder then has a bias of its own, and nothing reads this one
        model.lm_head.bias.requires_grad_(False)
    return Case(model, tokens(), masked_losses)


def roberta_classifier(tied: bool) -> Case:
    data = tokens() | {"labels": torch.tensor([0, 2, 1, 0])}
    return Case(shaken(RobertaForSequenceClassification(_roberta(tied))), data, class_losses)


def of_images(model: nn.Module, batch: int) -> Case:
    g = torch.Generator().manual_seed(2)
    pixels = torch.randn(batch, 3, 8, 8, generator=g, dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 0])[:batch]
    return Case(shaken(model), {"pixel_values": pixels, "labels": labels}, class_losses)


def vit(tied: bool) -> Case:
    config = ViTConfig(**SIZES, **NO_DROPOUT, image_size=8, patch_size=4, num_labels=3)
    return of_images(ViTForImageClassification(config), 4)


def wrn(tied: bool) -> Case:
    config = WideResNetConfig(depth=10, width=1, num_labels=3)
    return of_images(WideResNetForImageClassification(config), 3)


MODELS = {
    "gpt2": gpt2,
    "llama": llama,
    "roberta_mlm": roberta_mlm,
    "roberta_classifier": roberta_classifier,
    "vit": vit,
    "wrn": wrn,
}
TYING = ("gpt2", "llama", "roberta_mlm")  # the others have nothing to tie


def build(name: str, tied: bool = True, seed: int = 0) -> Case:
    torch.manual_seed(seed)
    return MODELS[name](tied)


def adapted(model: nn.Module) -> nn.Module:
    """A GPT-2 with LoRA on its attention."""
    settings = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.0)
    return get_peft_model(model, settings)


def cancelling(size):
    """Vectors ``(8, 16, 64)`` and their shares of a loss; record 3's are large and cancel."""
    x, shares = torch.randn(8, 16, 64), torch.randn(8, 16)
    x[3], shares[3] = x[3, 0], size * (shares[3] - shares[3].mean())
    return {"x": x, "shares": shares}
