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

from dpft.objectives.base import Batch, Losses
from dpft.privacy import keys, microbatches


@dataclass(frozen=True)
class UnitBatch:
    """Some units' rows.

    Attributes:
        batch: ``B * m`` rows, the ``m`` rows of a unit next to each other.
        weights: of each row in its unit's loss, ``(B, m)`` in float64; zero for a row that only
            fills up. Those of a user's records add up to 1.
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

    def __len__(self) -> int:
        """How many units there are: ``N``."""
        ...

    def microbatches(self, indices: Sequence[int], token_budget: int) -> list[list[int]]:
        """Cut a logical batch into pieces that fit memory.

        Args:
            indices: units of the logical batch.
            token_budget: most padded tokens that a piece may have; a unit beyond it is a piece by
                itself.
        """
        ...

    def batch(self, indices: Sequence[int], step: int) -> UnitBatch: ...

    def losses(self, model: nn.Module, batch: UnitBatch) -> Tensor:
        """One loss per unit, ``(B,)``, nothing summed across units."""
        ...


class Records:
    """Each record is a unit."""

    def __init__(self, objective: Losses, examples: Sequence[Any]) -> None:
        self._objective = objective
        self._examples = examples
        self._lengths = [example.length for example in examples]

    def __len__(self) -> int:
        return len(self._examples)

    def microbatches(self, indices: Sequence[int], token_budget: int) -> list[list[int]]:
        return microbatches(indices, self._lengths, token_budget)

    def batch(self, indices: Sequence[int], step: int) -> UnitBatch:
        batch = self._objective.collate([self._examples[i] for i in indices])
        return UnitBatch(batch, torch.ones(len(indices), 1, dtype=torch.float64))

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

    Guarantee: a user's loss depends on that user's records and name, on the key and the step, and
    on nothing of anybody else. A clipper that is told of the rows (``backward(losses, rows=m)``)
    clips the gradient of the whole loss, so one user moves a step's sum by at most its sensitivity,
    however many records there are. Which records are drawn is independent of which users are
    sampled: for any draw the step is the subsampled Gaussian mechanism that is accounted for.
    """

    def __init__(
        self,
        objective: Losses,
        examples: Sequence[Any],
        owners: Sequence[str],
        most: int,
        key: bytes,
    ) -> None:
        if most < 1:
            raise ValueError(f"{most} records of a user in a step; expected at least 1")
        by_owner: dict[str, list[Any]] = {}
        for owner, example in zip(owners, examples, strict=True):
            by_owner.setdefault(owner, []).append(example)
        self._objective = objective
        # In order of name, which one user's records more or less do not change.
        self._owners = sorted(by_owner)
        self._units = [by_owner[owner] for owner in self._owners]
        self._most = most
        self._key = key
        self._rows = [min(len(unit), most) for unit in self._units]
        self._longest = [max(example.length for example in unit) for unit in self._units]

    def __len__(self) -> int:
        return len(self._owners)

    def microbatches(self, indices: Sequence[int], token_budget: int) -> list[list[int]]:
        """Users with equally many records come together.

        Every user of a piece gets as many rows as the one with the most, and every row is as long
        as the longest: users of one record beside a user of eight would be computed eight times.
        """
        pieces: list[list[int]] = []
        longest = 0
        for i in sorted(indices, key=lambda i: (self._rows[i], self._longest[i], i)):
            longest = max(longest, self._longest[i])
            if pieces and (len(pieces[-1]) + 1) * self._rows[i] * longest <= token_budget:
                pieces[-1].append(i)
            else:
                pieces.append([i])
                longest = self._longest[i]
        return pieces

    def batch(self, indices: Sequence[int], step: int) -> UnitBatch:
        chosen = [self._chosen(i, step) for i in indices]
        width = max(len(unit) for unit in chosen)
        rows, weights = [], torch.zeros(len(chosen), width, dtype=torch.float64)
        for number, unit in enumerate(chosen):
            # Filled up with the user's own: another's row could spoil the loss if it is not finite.
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


def finite_losses(data: TrainingSet, model: nn.Module, batch: UnitBatch) -> Tensor:
    """The losses of the units whose loss is finite; the others contribute nothing.

    Their forward is left out of the graph altogether, since zero times NaN is NaN. What a unit
    adds still depends on that unit alone, so the guarantee stands.
    """
    losses = data.losses(model, batch)
    finite = torch.isfinite(losses.detach())
    if bool(finite.all()):
        return losses
    if not bool(finite.any()):
        return losses[:0]
    return data.losses(model, batch.pick(finite))
