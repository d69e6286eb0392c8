"""Models with some or no weights, for a process that holds a part, or gets them from another."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel


def load_partly(
    kind: type[PreTrainedModel],
    files: Sequence[Path],
    absent: AbstractSet[str],
    location: str,
    *,
    config: Any,
    **options: Any,
) -> Any:
    """Load as ``from_pretrained`` does, without the values of some parameters.

    In their place is one zero, which is seen everywhere and takes no memory. What files know by
    another name than the model is read, but for the first word, which files of a model without its
    head lack.

    Args:
        kind: class of the model.
        files: its weights, in safetensors form.
        absent: names of the parameters that need no values.
        location: not looked at.
        config: the architecture.
        options: of ``from_pretrained``.
    """
    # Of parameters that are tied in the files, all are read or none.
    tied = kind._tied_weights_keys if config.tie_word_embeddings else None
    unread = set(absent)
    for pair in (tied or {}).items():
        if not unread.issuperset(pair):
            unread.difference_update(pair)
    unread |= {name.partition(".")[2] for name in unread}
    weights: dict[str, Any] = {}
    with ExitStack() as stack:
        for file in files:
            opened = stack.enter_context(safe_open(file, framework="pt"))
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                stored = opened.get_slice(name)  # read when transformers slices it
                if name in unread:
                    stored = torch.zeros(()).expand(*stored.get_shape())
                weights[name] = stored
        options.pop("trust_remote_code", None)
        return kind.from_pretrained(
            None, config=config, state_dict=weights, trust_remote_code=False, **options
        )


def without_weights(auto: Any, config: Any) -> PreTrainedModel | None:
    """Make a model whose parameters and buffers have room, and no values yet.

    Room that nothing was written to takes no memory: a process that is to hold a part of a model
    never holds more of it.

    Returns:
        None for a model that keeps tensors elsewhere, which no other process would send.
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
    roomy: dict[int, Any] = {}  # by the tensor that it replaces: tied parameters stay one
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
