"""Units of privacy: what is sampled, clipped and counted. A record each, or all records of a user.

A batch has one loss per unit. Where users are the units, a user's loss is the mean over a bounded
number of the user's records, drawn anew at each step: whatever one user adds to the sum of a step
is one clipped gradient, however many records there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dpft.privacy import keys, microbatches
from dpft.privacy.shapes import BLANK, FixedShapes, Shape, widest
from dpft.tasks.objectives.base import Batch, Losses
from dpft.tasks.objectives.packed import IntArray, lengths
from dpft.tasks.owners import Owners


@dataclass(frozen=True)
class UnitBatch:
    """Some units' rows.

    Attributes:
        batch: ``B * m`` rows, the ``m`` rows of a unit next to each other.
        weights: of each row in its unit's loss, ``(B, m)`` in float64; zero for a row that only
            fills up. Those of a user's records add up to 1.
        real: which units are any, ``(B,)`` in bool and on the CPU; the last is a blank then, and
            all blanks are alike. None: all are.
    """

    batch: Batch
    weights: Tensor
    real: Tensor | None = None

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def rows_per_unit(self) -> int:
        return self.weights.shape[1]

    def to(self, device: torch.device) -> UnitBatch:
        weights = self.weights.to(device, non_blocking=device.type != "cpu")
        return UnitBatch(self.batch.to(device), weights, self.real)

    def of_units(self, losses: Tensor) -> Tensor:
        """The losses without those of blanks."""
        if self.real is None:
            return losses
        kept = self.real.nonzero().flatten()  # in the host's memory
        return losses[kept.to(losses.device, non_blocking=losses.device.type != "cpu")]

    def units(self, index: Tensor) -> UnitBatch:
        """The units that ``index`` picks (int64, ``(n,)``), padded as they are here."""
        real = None if self.real is None else self.real[index.to(self.real.device)]
        return self._of(index.to(self.weights.device), real)

    def without(self, units: Tensor) -> UnitBatch:
        """The batch without the units where ``units`` (bool, ``(B,)``) is true.

        A batch with blanks keeps its shapes: they become blanks too.
        """
        kept = torch.arange(len(self), device=units.device)
        real = None
        if self.real is None:
            kept = kept[~units]
        else:
            kept[units] = len(self) - 1
            real = self.real & ~units.to(self.real.device)
        return self._of(kept, real)

    def _of(self, units: Tensor, real: Tensor | None) -> UnitBatch:
        m = self.rows_per_unit
        rows = (units.unsqueeze(1) * m + torch.arange(m, device=units.device)).flatten()
        return UnitBatch(self.batch.rows(rows), self.weights[units], real)


class Units(Protocol):
    """The units to train on, and the loss of each.

    Attributes:
        lengths: tokens of each unit's longest record.
        shapes: how microbatches get shapes that do not depend on who is in them; None: they do not.
    """

    @property
    def lengths(self) -> IntArray: ...

    @property
    def shapes(self) -> FixedShapes | None: ...

    def __len__(self) -> int:
        """How many units there are: ``N``."""
        ...

    def microbatches(self, indices: Sequence[int], token_budget: int) -> list[list[int]]:
        """Cut a logical batch into pieces that fit memory.

        Args:
            indices: units of the logical batch.
            token_budget: most padded tokens that a piece may have; a unit beyond it is a piece by
                itself.

        Returns:
            Indices of each piece; `dpft.privacy.shapes.BLANK` for a row that only fills it up.
        """
        ...

    def batch(self, indices: Sequence[int], step: int) -> UnitBatch:
        """The rows of some units; of `dpft.privacy.shapes.BLANK` alone, those of nobody."""
        ...

    def losses(self, model: nn.Module, batch: UnitBatch) -> Tensor:
        """One loss per unit, ``(B,)``, nothing summed across units."""
        ...


class TrainingSet(Units, Protocol):
    """Units that may be trained under another key."""

    def under(self, key: bytes) -> TrainingSet:
        """The same units, whose own random choices follow from another key."""
        ...


class Records:
    """Each record is a unit.

    Args:
        objective: gives the losses.
        examples: the encoded records.
        shapes: where a record's shapes may not depend on its company; None: where they may.
    """

    def __init__(
        self, objective: Losses, examples: Sequence[Any], shapes: FixedShapes | None = None
    ) -> None:
        self._objective = objective
        self._examples = examples
        self.shapes = shapes
        self.lengths = lengths(examples)

    def __len__(self) -> int:
        return len(self._examples)

    def microbatches(self, indices: Sequence[int], token_budget: int) -> list[list[int]]:
        if self.shapes is None:
            return microbatches(indices, self.lengths, token_budget)
        return self.shapes.microbatches(indices, self._shape, token_budget)

    def batch(self, indices: Sequence[int], step: int) -> UnitBatch:
        if list(indices) == [BLANK]:
            return _nobodys(self._objective)
        weights = torch.ones(len(indices), 1, dtype=torch.float64)
        if self.shapes is None:
            return UnitBatch(self._objective.collate([self._examples[i] for i in indices]), weights)
        _, *widths = self.shapes.of(indices, self._shape)
        blank = self._objective.blank()
        rows = [blank if i == BLANK else self._examples[i] for i in indices]
        return UnitBatch(self._objective.collate(rows, widths), weights, _real(indices))

    def under(self, key: bytes) -> Records:
        return self  # chooses nothing at random

    def losses(self, model: nn.Module, batch: UnitBatch) -> Tensor:
        return self._objective.losses(model, batch.batch)

    def _shape(self, index: int) -> Shape:
        if self.shapes is not None and self.shapes.places is not None:
            return (1, *self._objective.widest())
        return (1, *self._objective.widths(self._examples[index]))


class Users:
    """All records of one owner are a unit.

    Args:
        objective: gives one loss per record.
        examples: the encoded records.
        owners: whose each one is.
        most: records of one user that take part in a step; those beyond are left out at random.
        key: decides which, with the step; secret.
        shapes: where a user's shapes may not depend on other users; None: where they may.

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
        shapes: FixedShapes | None = None,
    ) -> None:
        if most < 1:
            raise ValueError(f"{most} records of a user in a step; expected at least 1")
        if len(owners) != len(examples):
            raise ValueError(f"{len(owners)} owners of {len(examples)} examples")
        self._objective = objective
        self._examples = examples
        # In order of name, which one user's records more or less do not change.
        self._owners = Owners.of(owners)
        self._order, self._bounds = self._owners.groups()
        self._most = most
        self._key = key
        self._rows = np.minimum(np.diff(self._bounds), most)
        self.lengths = np.maximum.reduceat(lengths(examples)[self._order], self._bounds[:-1])
        self.shapes = shapes

    def __len__(self) -> int:
        return len(self._owners.names)

    def microbatches(self, indices: Sequence[int], token_budget: int) -> list[list[int]]:
        """Users with equally many records come together.

        Every user of a piece gets as many rows as the one with the most, and every row is as long
        as the longest: users of one record beside a user of eight would be computed eight times.
        """
        if self.shapes is not None:
            return self.shapes.microbatches(indices, self._shape, token_budget)
        pieces: list[list[int]] = []
        longest = 0
        for i in sorted(indices, key=lambda i: (self._rows[i], self.lengths[i], i)):
            longest = max(longest, self.lengths[i])
            if pieces and (len(pieces[-1]) + 1) * self._rows[i] * longest <= token_budget:
                pieces[-1].append(i)
            else:
                pieces.append([i])
                longest = self.lengths[i]
        return pieces

    def batch(self, indices: Sequence[int], step: int) -> UnitBatch:
        if list(indices) == [BLANK]:
            return _nobodys(self._objective)
        widths, real = None, None
        if self.shapes is None:
            chosen = [self._chosen(i, step) for i in indices]
            width = max(len(unit) for unit in chosen)
        else:
            blank = [self._objective.blank()]
            chosen = [blank if i == BLANK else self._chosen(i, step) for i in indices]
            width, *widths = self.shapes.of(indices, self._shape)
            real = _real(indices)
        rows, weights = [], torch.zeros(len(chosen), width, dtype=torch.float64)
        for number, unit in enumerate(chosen):
            # Filled up with the user's own: another's row could spoil the loss if it is not finite.
            rows += [*unit, *[unit[0]] * (width - len(unit))]
            weights[number, : len(unit)] = 1 / len(unit)
        collate = self._objective.collate
        return UnitBatch(collate(rows) if widths is None else collate(rows, widths), weights, real)

    def under(self, key: bytes) -> Users:
        same = copy(self)
        same._key = key
        return same

    def losses(self, model: nn.Module, batch: UnitBatch) -> Tensor:
        rows = self._objective.losses(model, batch.batch).view_as(batch.weights)
        # Not a product alone: zero times infinity is not zero.
        used = batch.weights > 0
        weights = batch.weights.to(rows.dtype)
        return torch.where(used, rows * weights, rows.new_zeros(())).sum(1)

    def _shape(self, unit: int) -> Shape:
        """Of all the user's records, whichever are drawn: rows come in powers of two."""
        if self.shapes is not None and self.shapes.places is not None:
            return (self._most, *self._objective.widest())
        rows = min(self._most, 1 << (int(self._rows[unit]) - 1).bit_length())
        records = self._order[self._bounds[unit] : self._bounds[unit + 1]].tolist()
        return (rows, *widest(self._objective.widths(self._examples[i]) for i in records))

    def _chosen(self, unit: int, step: int) -> list[Any]:
        records = self._order[self._bounds[unit] : self._bounds[unit + 1]]
        if len(records) > self._most:
            name = str(self._owners.names[unit].as_py())
            generator = keys.generator(self._key, "records of a user", step, name)
            records = records[sorted(generator.choice(len(records), self._most, replace=False))]
        return [self._examples[i] for i in records.tolist()]


def finite_losses(
    data: Units,
    model: nn.Module,
    batch: UnitBatch,
    agreed: Callable[[bool], bool] | None = None,
) -> tuple[Tensor, UnitBatch]:
    """The losses of the units whose loss is finite, and their batch; the others contribute nothing.

    Their forward is left out of the graph altogether, since zero times NaN is NaN. What a unit
    adds still depends on that unit alone, so the guarantee stands.

    Args:
        data: the units.
        model: whose losses they are.
        batch: of them.
        agreed: whether it is so on any of the ranks that must run the model together; None: the
            model runs here alone.
    """
    losses = data.losses(model, batch)
    infinite = ~torch.isfinite(losses.detach())
    if not (agreed or bool)(bool(infinite.any())):
        return losses, batch
    batch = batch.without(infinite)
    if not len(batch) and agreed is None:
        return losses[:0], batch
    if not len(batch):
        batch = data.batch([BLANK], 0).to(losses.device)
    return data.losses(model, batch), batch


def _nobodys(objective: Losses) -> UnitBatch:
    """A microbatch of a rank that has no unit left, while others run the model with theirs."""
    weights = torch.ones(1, 1, dtype=torch.float64)
    return UnitBatch(objective.collate([objective.blank()]), weights, torch.tensor([False]))


def _real(indices: Sequence[int]) -> Tensor:
    return torch.tensor([i != BLANK for i in indices])
