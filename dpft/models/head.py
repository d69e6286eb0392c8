"""A classifier's head: which parameters it has, and how it is drawn anew."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel


@torch.no_grad()
def draw_head(model: PreTrainedModel, auto: Any, config: Any) -> None:
    """New weights for a head of as many classes, but not of these, or in another order.

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
