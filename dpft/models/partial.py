"""Reading some of a model's weights, in a process that holds a part of the model."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
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
    """What ``from_pretrained`` gives, without the values of some parameters.

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
    unread = _unread(kind, config, absent)
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


def _unread(kind: type[PreTrainedModel], config: Any, absent: AbstractSet[str]) -> AbstractSet[str]:
    """What need not be read: of parameters that are tied in the files, all or none."""
    tied = kind._tied_weights_keys if config.tie_word_embeddings else None
    for pair in (tied or {}).items():
        if not absent >= set(pair):
            absent = absent - set(pair)
    return absent
