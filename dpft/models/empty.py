"""A model's modules without its weights, for a process that gets them from another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


def without_weights(auto: Any, config: Any) -> PreTrainedModel | None:
    """A model whose parameters and buffers have room, and no values yet.

    Room that nothing was written to takes no memory: a process that is to hold a part of a model
    never holds more of it.

    Args:
        auto: the class of transformers that builds a model of the needed kind.
        config: the architecture.

    Returns:
        None for a model that keeps tensors elsewhere, which nobody would send.
    """
    with torch.device("meta"):
        model: PreTrainedModel = auto.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )
    if any(
        isinstance(value, Tensor) and value.is_meta
        for module in model.modules()
        for value in vars(module).values()
    ):
        return None
    roomy: dict[int, Any] = {}  # by what stands for it: tied parameters stay one
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                room = torch.empty_like(parameter, device="cpu")
                fresh = nn.Parameter(room, requires_grad=parameter.requires_grad)
                module._parameters[name] = roomy.setdefault(id(parameter), fresh)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                room = torch.empty_like(buffer, device="cpu")
                module._buffers[name] = roomy.setdefault(id(buffer), room)
    return model
