"""Tied weights: an output head and an input embedding that are one parameter, or two."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel


def is_tied(model: PreTrainedModel) -> bool:
    """Whether the output head and the input embedding are one parameter."""
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def untie(model: PreTrainedModel) -> None:
    """Make the head a parameter of its own, equal to the embedding at first."""
    if is_tied(model):
        head: Any = model.get_output_embeddings()
        head.weight = nn.Parameter(head.weight.detach().clone())
    model.config.tie_word_embeddings = False


def settle_bias(model: PreTrainedModel) -> None:
    """Leave an untied masked language model one bias of its head that is trained.

    Transformers registers it twice, and in an untied model only the inner one is read. The outer
    one would be trained on noise alone; it becomes a buffer, so that files still hold both.
    """
    head: Any = model.get_output_embeddings()
    if is_tied(model):
        return
    for module in model.modules():
        outer = getattr(module, "bias", None)
        if outer is None or not any(child is head for child in module.children()):
            continue
        if outer is head.bias:
            head.bias = nn.Parameter(outer.detach().clone())
        del module.bias
        module.register_buffer("bias", outer.detach())
