"""The head of a model: of a classifier, or an output embedding that may be tied to the input's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel


@torch.no_grad()
def draw_head(model: PreTrainedModel, auto: Any, config: Any) -> None:
    """New weights for a head that was not of these classes in this order, all its layers.

    As those of a model that is drawn whole: how a head is drawn is its family's own matter.
    """
    drawn = auto.from_config(config, dtype=torch.float32, trust_remote_code=False).state_dict()
    for name, weight in model.state_dict().items():
        if of_classes(model, name):
            weight.copy_(drawn[name])


def of_classes(model: PreTrainedModel, name: str) -> bool:
    """Whether a parameter lies in the head proper, whose outputs are classes."""
    return in_head(model, name) and ".pooler." not in name


def in_head(model: PreTrainedModel, name: str) -> bool:
    """Whether a parameter lies behind the encoder; a pooler is part of the head in its use."""
    base = model.base_model_prefix
    if not base or not hasattr(model, base):
        return name.split(".")[0] in ("classifier", "head")
    return not name.startswith(f"{base}.") or name.startswith(f"{base}.pooler.")


def is_tied(model: PreTrainedModel) -> bool:
    """Whether the output head and the input embedding are one parameter."""
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def tables(model: PreTrainedModel) -> frozenset[str]:
    """Names of the input embedding and of the output head, tied or not."""
    both = (model.get_input_embeddings(), model.get_output_embeddings())
    return frozenset(f"{name}.weight" for name, module in model.named_modules() if module in both)


def untie(model: PreTrainedModel, copy: bool = True) -> None:
    """Make the head a parameter of its own, equal to the embedding at first.

    Args:
        model: with a tied head, or without.
        copy: whether it gets memory of its own; not where one of the two will go.
    """
    if is_tied(model):
        head: Any = model.get_output_embeddings()
        weight = head.weight.detach()
        head.weight = nn.Parameter(weight.clone() if copy else weight)
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
