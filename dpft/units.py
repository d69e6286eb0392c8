"""Units of privacy: what is sampled, clipped and counted. A record each, or all records of a user.

A batch has one loss per unit. Where users are the units, a user's loss is the mean over a bounded
number of the user's records, drawn anew at each step: whatever one user adds to the sum of a step
is one clipped gradient, however many records there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dpft.objectives.base import Batch, Objective
from dpft.privacy import keys


@dataclass(frozen=True)
class UnitBatch:
    """Some units' rows.

    Attributes:
        batch: ``B * m`` rows, the ``m`` rows of a unit next to each other.
        weights: of each row in its unit's loss, ``(B, m)``; zero for a row that only fills up.
    """

    batch: Batch
    weights: Tensor

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def rows_per_unit(self) -> int:
        return self.weights.shape[1]

    def to(self, device: torch.device) -> UnitBatch:
        return UnitBatch(self.batch.to(device), self.weights.to(device))

    def pick(self, units: Tensor) -> UnitBatch:
        """The units where ``units`` (bool, ``(B,)``) is true."""
        rows = units.repeat_interleave(self.rows_per_unit)
        return UnitBatch(self.batch.rows(rows), self.weights[units])


class TrainingSet(Protocol):
    """The units to train on, and the loss of each."""

    @property
    def lengths(self) -> Sequence[int]:
        """Positions that each unit takes in memory, by which microbatches are cut."""
        ...

    def batch(self, indices: Sequence[int], step: int) -> UnitBatch: ...

    def losses(self, model: nn.Module, batch: UnitBatch) -> Tensor:
        """One loss per unit, ``(B,)``, nothing summed across units."""
        ...


class Records:
    """Each record is a unit."""

    def __init__(self, objective: Objective, examples: Sequence[Any]) -> None:
        self._objective = objective
        self._examples = examples
        self.lengths = [example.length for example in examples]

    def batch(self, indices: Sequence[int], step: int) -> UnitBatch:
        batch = self._objective.collate([self._examples[i] for i in indices])
        return UnitBatch(batch, torch.ones(len(indices), 1))

    def losses(self, model: nn.Module, batch: UnitBatch) -> Tensor:
        return self._objective.losses(model, batch.batch)


class Users:
    """All records of one owner are a unit.

    Args:
        objective: gives one loss per record.
        examples: the encoded records.
        owners: whose each one is.
        most: records of one user that take part in a step; those beyond are left out at random.
        key: decides which, with the step; secret.
    """

    def __init__(
        self,
        objective: Objective,
        examples: Sequence[Any],
        owners: Sequence[str],
        most: int,
        key: bytes,
    ) -> None:
        by_owner: dict[str, list[Any]] = {}
        for owner, example in zip(owners, examples, strict=True):
            by_owner.setdefault(owner, []).append(example)
        self._objective = objective
        # In order of name, which one user's records more or less do not change.
        self._owners = sorted(by_owner)
        self._units = [by_owner[owner] for owner in self._owners]
        self._most = most
        self._key = key
        self.lengths = [
            min(len(unit), most) * max(example.length for example in unit) for unit in self._units
        ]

    def batch(self, indices: Sequence[int], step: int) -> UnitBatch:
        chosen = [self._chosen(i, step) for i in indices]
        width = max(len(unit) for unit in chosen)
        rows, weights = [], torch.zeros(len(chosen), width)
        for number, unit in enumerate(chosen):
            rows += [*unit, *[unit[0]] * (width - len(unit))]
            weights[number, : len(unit)] = 1 / len(unit)
        return UnitBatch(self._objective.collate(rows), weights)

    def losses(self, model: nn.Module, batch: UnitBatch) -> Tensor:
        rows = self._objective.losses(model, batch.batch).view_as(batch.weights)
        # Not a product alone: zero times infinity is not zero.
        used = batch.weights > 0
        weights = batch.weights.to(rows.dtype)
        return torch.where(used, rows * weights, rows.new_zeros(())).sum(1)

    def _chosen(self, unit: int, step: int) -> list[Any]:
        examples = self._units[unit]
        if len(examples) <= self._most:
            return examples
        generator = keys.generator(self._key, "records of a user", step, self._owners[unit])
        picked = sorted(generator.choice(len(examples), self._most, replace=False))
        return [examples[i] for i in picked]
