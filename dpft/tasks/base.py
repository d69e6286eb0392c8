"""What a task is: it turns records into examples, per-record losses, prompts and scores.

A record is the unit of privacy: two datasets are neighbours if one has one record more. Whatever a
task does, the loss of a record may depend on that record alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TextRecord:
    """A record of a text-to-text task, as text."""

    source: str
    target: str


@dataclass(frozen=True)
class Example:
    """An encoded record: the loss is taken on ``target`` given ``prompt``."""

    prompt: tuple[int, ...]
    target: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.target)


@dataclass(frozen=True)
class Prompt:
    """One test instance: what to decode from, and every reference for it."""

    source: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class Batch:
    """Model inputs for ``B`` records; every tensor has ``B`` rows."""

    tensors: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def to(self, device: torch.device) -> Batch:
        return Batch({name: tensor.to(device) for name, tensor in self.tensors.items()})


class Task(Protocol):
    """Implemented once per family; see `dpft.tasks.e2e.E2E`."""

    name: str
    unit: str
    """What one record is, in words for the model card."""
    max_length: int

    @property
    def location(self) -> tuple[str, Path | None]:
        """``files`` and their folder, or ``hub`` or ``sample``."""
        ...

    def records(self, split: str) -> Sequence[TextRecord]:
        """Records of ``train``, ``dev`` or ``test``."""
        ...

    def encode(self, record: TextRecord, tokenizer: PreTrainedTokenizerBase) -> Example: ...

    def collate(self, examples: Sequence[Example]) -> Batch: ...

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """One loss per record, ``(B,)``, nothing summed across records."""
        ...

    def prompts(self, split: str) -> Sequence[Prompt]:
        """Instances to decode, each with all its references."""
        ...

    def encode_prompt(self, source: str, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]: ...

    def score(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> dict[str, float]: ...

    def signature(self) -> str:
        """Names and versions of what computes the scores."""
        ...

    def labels(self) -> Sequence[str]:
        """Words that every shown number must carry, such as "generated sample data"."""
        ...


def fingerprint(records: Sequence[TextRecord]) -> str:
    """SHA-256 over the records in order: two runs saw the same data if and only if it is equal."""
    digest = hashlib.sha256()
    for record in records:
        for text in (record.source, record.target):
            data = text.encode()
            digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
