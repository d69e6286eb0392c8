"""The losses of transformers' models, one number for each record.

Trainer's own losses are averages over a batch, or sums divided by the batch's number of tokens.
Either couples records. Here a record's loss is what the model says of a batch of that record alone;
`check_loss` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from dpft.config.errors import ModelError
from dpft.privacy.token_losses import IGNORED, token_losses

Inputs = Mapping[str, Tensor]
Loss = Callable[[nn.Module, Inputs], Tensor]
"""Of a model and a collated microbatch of ``B`` records: losses ``(B,)``, nothing shared."""

_GIVE_YOUR_OWN = "pass per_example_loss=, a function of (model, inputs) that returns shape (B,)"


def loss_of(model: nn.Module) -> Loss:
    """The loss that a model trains with, for each record by itself.

    Args:
        model: with a head of transformers, or an adapter of peft around one.

    Raises:
        ModelError: for a head whose loss is not known here, or that has a loss of routers too.
    """
    inner: Any = _unwrapped(model)
    kind = getattr(inner, "loss_type", None)
    name = type(inner).__name__
    if getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        kind = "encoder-decoder" if kind in (None, "ForConditionalGeneration") else kind
    elif kind is None and name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        kind = "ForCausalLM"
    if getattr(getattr(inner, "config", None), "output_router_logits", False):
        raise ModelError(
            f"{name} adds a loss of its routers (output_router_logits=True), which is an average "
            "over all tokens of a batch and would couple records; expected none: set "
            "model.config.output_router_logits = False"
        )
    if kind not in _LOSSES:
        raise ModelError(
            f"the loss of {name} ({kind}) is not known as one of each record; expected one of "
            f"{', '.join(_LOSSES)}: {_GIVE_YOUR_OWN}"
        )
    return _LOSSES[kind]


def check_loss(model: nn.Module, inputs: Inputs, losses: Tensor) -> bool:
    """Compare our loss of one record with the model's own.

    Args:
        model: with dropout off.
        inputs: of one record, with labels.
        losses: ours, ``(1,)``.

    Returns:
        Whether they could be compared: the model's own is finite.

    Raises:
        ModelError: if they differ. The message has no number of the data.
    """
    own = model(**inputs)
    own = own["loss"] if isinstance(own, dict) else own[0]
    # A record without targets: the model's mean over nothing is not finite, ours is zero.
    finite = bool(torch.isfinite(own))
    if finite and not torch.allclose(own.double(), losses[0].double(), 1e-3):
        raise ModelError(
            f"the loss that {type(_unwrapped(model)).__name__} computes of a record is not the one "
            f"that PrivateTrainer would train with: {_GIVE_YOUR_OWN}"
        )
    return finite


def _unwrapped(model: nn.Module) -> nn.Module:
    base = getattr(model, "get_base_model", None)
    return base() if callable(base) else model


def _logits(model: nn.Module, inputs: Inputs, *without: str) -> Tensor:
    output = model(**{name: x for name, x in inputs.items() if name not in without})
    logits: Tensor = output["logits"] if isinstance(output, dict) else output[0]
    return logits


def _mean(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over each record's own targets; zero for a record without any.

    Args:
        logits: ``(B, T, V)``.
        labels: ``(B, T)``, `IGNORED` where there is no target.

    Returns:
        ``(B,)``.

    Raises:
        ModelError: if there is no logit for each label.
    """
    if logits.shape[:2] != labels.shape:
        raise ModelError(
            f"the model gives logits for {logits.shape[1]} positions and the collator labels for "
            f"{labels.shape[1]}; expected as many: {_GIVE_YOUR_OWN} (prompts of peft put tokens "
            "of their own in front, whose logits it must leave out)"
        )
    return token_losses(logits, labels).sum(1) / (labels != IGNORED).sum(1).clamp(min=1)


def _causal(model: nn.Module, inputs: Inputs) -> Tensor:
    # The last position predicts nothing. A slice's gradient would be as large as the logits again.
    targets = F.pad(inputs["labels"][:, 1:], (0, 1), value=IGNORED)
    return _mean(_logits(model, inputs, "labels"), targets)


def _tokens(model: nn.Module, inputs: Inputs) -> Tensor:
    return _mean(_logits(model, inputs, "labels"), inputs["labels"])


def _encoder_decoder(model: nn.Module, inputs: Inputs) -> Tensor:
    if "decoder_input_ids" in inputs:
        return _tokens(model, inputs)
    shift = getattr(_unwrapped(model), "prepare_decoder_input_ids_from_labels", None)
    if shift is None:  # of M2M100 and Blenderbot the forward shifts the labels
        return _mean(_logits(model, inputs), inputs["labels"])
    return _tokens(model, {**inputs, "decoder_input_ids": shift(inputs["labels"])})


def _classes(model: nn.Module, inputs: Inputs) -> Tensor:
    config: Any = model.config
    logits, labels = _logits(model, inputs, "labels"), inputs["labels"]
    kind = config.problem_type
    if kind is None and config.num_labels == 1:
        kind = "regression"
    elif kind is None:
        single = labels.dtype in (torch.long, torch.int)
        kind = "single_label_classification" if single else "multi_label_classification"
    if kind == "single_label_classification":
        return F.cross_entropy(logits, labels.view(-1), ignore_index=IGNORED, reduction="none")
    of_labels = labels.view_as(logits).to(logits.dtype)
    if kind == "regression":
        return F.mse_loss(logits, of_labels, reduction="none").mean(1)
    return F.binary_cross_entropy_with_logits(logits, of_labels, reduction="none").mean(1)


def _span(model: nn.Module, inputs: Inputs) -> Tensor:
    places = ("start_positions", "end_positions")
    output = model(**{name: x for name, x in inputs.items() if name not in places})
    total: Any = 0
    for name, place in zip(("start_logits", "end_logits"), places, strict=True):
        logits = output[name]
        target = inputs[place].view(-1).clamp(0, logits.shape[1])
        total = total + F.cross_entropy(
            logits, target, ignore_index=logits.shape[1], reduction="none"
        )
    mean: Tensor = total / 2
    return mean


_LOSSES: dict[str, Loss] = {
    "ForCausalLM": _causal,
    "ForMaskedLM": _tokens,
    "ForTokenClassification": _tokens,
    "encoder-decoder": _encoder_decoder,
    "ForSequenceClassification": _classes,
    "ForImageClassification": _classes,
    "ForAudioClassification": _classes,
    "ForVideoClassification": _classes,
    "ForQuestionAnswering": _span,
}
