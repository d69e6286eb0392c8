"""What a checkpoint of Trainer holds, and whether Trainer has loaded all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from torch import Tensor

if TYPE_CHECKING:
    from torch import nn

MANIFEST = "dpft.json"


def digests(model: nn.Module) -> tuple[str, str]:
    """SHA-256 of all tensors of a model, and of those that are not trained, as hex."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    held = [*model.named_parameters(), *model.named_buffers()]
    return digest(held), digest((name, x) for name, x in held if name not in trained)


def digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 of tensors and their names, as hex."""
    found = hashlib.sha256()
    for name, tensor in tensors:
        array = tensor.detach().cpu().contiguous()
        found.update(f"{name} {array.dtype} {tuple(array.shape)};".encode())
        found.update(array.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def unread(folder: Path, model: nn.Module, trained: Mapping[str, Tensor]) -> list[str]:
    """Trained tensors that Trainer could not read from a checkpoint, as far as names tell.

    It reads the files as they are, without a word on what they lack. transformers saves some
    families (ViT, Mixtral) under other names than the model's, which `from_pretrained` alone turns
    back.

    Args:
        folder: of the checkpoint; of an adapter's, which peft reads, nothing is told.
        model: whose tensors go by these names.
        trained: parameters that the checkpoint is to have, by name.
    """
    files, names = sorted(folder.glob("model*.safetensors")), set()
    for file in files:
        with safe_open(file, framework="pt") as opened:
            names |= set(opened.keys())
    # Of tied weights the file has one name, be it the model's first or not.
    read = {id(x) for name, x in model.state_dict(keep_vars=True).items() if name in names}
    return [name for name, x in trained.items() if files and id(x) not in read]
