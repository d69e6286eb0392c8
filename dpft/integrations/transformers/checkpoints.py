"""A checkpoint of Trainer: whether it is as it was saved, and whether Trainer has loaded all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dpft.runs import CheckpointError
from dpft.runs.atomic import sha256_file
from dpft.runs.identity import opened

if TYPE_CHECKING:
    from torch import nn

MANIFEST = "dpft.json"


def manifest_of(folder: Path) -> dict[str, Any]:
    """What the manifest of a checkpoint says.

    Raises:
        CheckpointError: if there is none, or it is damaged.
    """
    try:
        held = opened(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
        held["files"] = dict(held["files"])
        held["step"] = int(held["step"])
        if {"model", "frozen", "weights"} - held.keys():
            raise KeyError("model, frozen, weights")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{folder} has no sound {MANIFEST} ({error!r}); expected a checkpoint that "
            "PrivateTrainer has finished: resume from an earlier one, or leave out "
            "resume_from_checkpoint to repeat the run from its first step"
        ) from error
    return held


def check_sound(folder: Path) -> None:
    """Read a checkpoint once, before Trainer does, whose errors name no file.

    Raises:
        CheckpointError: if a file is not the one that was saved.
    """
    damaged = []
    for name, sha in manifest_of(folder)["files"].items():
        try:
            same = sha256_file(folder / name) == sha
        except OSError:
            same = False
        if not same:
            damaged.append(name)
    if damaged:
        raise CheckpointError(
            f"{folder} is damaged: {', '.join(damaged)}; expected the files that {MANIFEST} "
            "tells of: resume from an earlier one"
        )


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
