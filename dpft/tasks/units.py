"""Units of privacy, which are sampled, clipped and counted: records, or all records of a user.

A batch has one loss per unit. Where users are the units, a user's loss is the mean over a bounded
number of the user's records, drawn anew at each step: whatever one user adds to the sum of a step
is one clipped gradient, however many records there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpft.privacy import keys, microbatches
from dpft.privacy.precision import on_device
from dpft.privacy.sampling import BLANK, FixedShapes, Shape, widest
from dpft.tasks.objectives.objective import Batch, Losses, lengths
from dpft.tasks.views import FloatArray, IntArray, Owners


@dataclass(frozen=True)
class UnitBatch:
    """The rows of some units."""

    batch: Batch  # ``B * m`` rows, the ``m`` rows of a unit next to each other
    # Weight of each row in its unit's loss, ``(B, m)`` in float64; zero for a padding row. A
    # unit's shares add up to 1.
    shares: Tensor
    # Weight of each unit's clipped gradient, ``(B,)`` on the CPU, in bool or float: zero for a
    # padding unit. Where units are padded, the last one is padding. None: all have 1.
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.shares)

    @property
    def rows_per_unit(self) -> int:
        return self.shares.shape[1]

    def to(self, device: torch.device) -> UnitBatch:
        return UnitBatch(self.batch.to(device), on_device(self.shares, device), self.weights)

    def of_units(self, losses: Tensor) -> Tensor:
        """Return the losses without those of padding."""
        if self.weights is None:
            return losses
        return losses[on_device(self.weights.nonzero().flatten(), losses.device)]

    def units(self, index: Tensor) -> UnitBatch:
        """Return the units that ``index`` picks (int64, ``(n,)``), padded as they are here."""
        weights = self.weights if self.weights is None else self.weights[index.cpu()]
        index, m = index.to(self.shares.device), self.rows_per_unit
        rows = (index.unsqueeze(1) * m + torch.arange(m, device=index.device)).flatten()
        return UnitBatch(self.batch.rows(rows), self.shares[index], weights)

    def without(self, units: Tensor) -> UnitBatch:
        """Return the batch without the units where ``units`` (bool, ``(B,)``) is true.

        In a batch with padding they become padding too, so that it keeps its shapes.
        """
        kept = torch.arange(len(self), device=units.device)
        if self.weights is None or self.weights[-1]:
            return self.units(kept[~units])
        kept[units] = len(self) - 1
        return self.units(kept)


class TrainingSet(ABC):
    """Units that are made of encoded records.

    Attributes:
        lengths: tokens of each unit's longest record.
        shapes: gives microbatches shapes that do not depend on the units in them; None: they do.
    """

    lengths: IntArray

    def __init__(
        self, objective: Losses, examples: Sequence[Any], shapes: FixedShapes | None = None
    ) -> None:
        self._objective, self._examples, self.shapes = objective, examples, shapes
        self._shape = cache(self._new_shape)  # a unit's shape follows from the unit alone

    def __len__(self) -> int:
        return len(self.lengths)

    def microbatches(self, indices: Sequence[int], token_budget: int) -> list[list[int]]:
        """Cut a logical batch into pieces of at most ``token_budget`` padded tokens, or one unit.

        `dpft.privacy.sampling.BLANK` is the index of padding.
        """
        if self.shapes is None:
            return microbatches(indices, self.lengths, token_budget)
        return self.shapes.microbatches(indices, self._shape, token_budget)

    def batch(self, indices: Sequence[int], step: int) -> UnitBatch:
        """Return the rows of some units; a single `dpft.privacy.sampling.BLANK` is padding."""
        objective = self._objective
        blank = [objective.blank()] if BLANK in indices else []
        if list(indices) == [BLANK]:  # every rank runs the same number of forward passes
            shares = torch.ones(1, 1, dtype=torch.float64)
            return UnitBatch(objective.collate(blank), shares, torch.tensor([False]))
        chosen = [blank if i == BLANK else self._chosen(i, step) for i in indices]
        counts = np.fromiter(map(len, chosen), np.int64, len(chosen))
        width, widths = int(counts.max()), None
        if self.shapes is not None:
            width, *widths = self.shapes.of(indices, self._shape)
        # Padded with the unit's own rows: another's could spoil the loss if it is not finite.
        rows = [one for unit in chosen for one in (*unit, *repeat(unit[0], width - len(unit)))]
        used = np.arange(width) < counts[:, None]
        shares = torch.from_numpy(used / counts[:, None])
        batch = objective.collate(rows) if widths is None else objective.collate(rows, widths)
        return UnitBatch(batch, shares, self._weights(torch.tensor(indices)))

    @abstractmethod
    def under(self, key: bytes) -> TrainingSet:
        """Return the same units, whose own random choices follow from a key."""

    @abstractmethod
    def losses(self, model: nn.Module, batch: UnitBatch) -> Tensor:
        """Return one loss per unit, ``(B,)``, nothing summed across units."""

    @abstractmethod
    def _chosen(self, unit: int, step: int) -> list[Any]:
        """Return the encoded records of a unit that take part in a step."""

    def _weights(self, units: Tensor) -> Tensor | None:
        """Return the weights of units' clipped gradients, as in `UnitBatch`."""
        return None if self.shapes is None else units != BLANK

    def _widths(self, record: int) -> tuple[int, ...]:
        coarse = {"coarse": True} if self.shapes is not None and self.shapes.compiled else {}
        return self._objective.widths(self._examples[record], **coarse)

    @abstractmethod
    def _new_shape(self, unit: int) -> Shape:
        """Return a shape for all of the unit's records, whichever are chosen."""


class Records(TrainingSet):
    """Each record is a unit.

    Args:
        weights: of the records' clipped gradients, ``(n,)``, positive and up to 1.
    """

    def __init__(
        self,
        objective: Losses,
        examples: Sequence[Any],
        shapes: FixedShapes | None = None,
        weights: FloatArray | None = None,
    ) -> None:
        super().__init__(objective, examples, shapes)
        self.lengths = lengths(examples)
        self._of_records = None if weights is None else torch.from_numpy(weights)

    def under(self, key: bytes) -> Records:
        return self  # chooses nothing at random

    def losses(self, model: nn.Module, batch: UnitBatch) -> Tensor:
        return self._objective.losses(model, batch.batch)

    def _weights(self, units: Tensor) -> Tensor | None:
        if self._of_records is None:
            return super()._weights(units)
        return torch.where(units == BLANK, 0.0, self._of_records[units])

    def _chosen(self, unit: int, step: int) -> list[Any]:
        return [self._examples[unit]]

    def _new_shape(self, unit: int) -> Shape:
        if self.shapes is not None and self.shapes.places is not None:
            return (1, *self._objective.widest())
        return (1, *self._widths(unit))


class Users(TrainingSet):
    """All records of one owner are a unit.

    Args:
        objective: gives one loss per record.
        examples: the encoded records.
        owners: of each record.
        most: largest number of records of a user in a step; more are drawn from at random.
        key: secret; with the step it decides which records are drawn.
        shapes: fixed shapes of microbatches; None: as wide as the widest user in them.

    Guarantee: a user's loss depends on that user's records and name, the key and the step, and on
    no other user. A clipper that knows of the rows (``backward(losses, rows=m)``) clips the
    gradient of the whole loss, so one user moves a step's sum by at most its sensitivity, however
    many records there are. Which records are drawn is independent of which users are sampled: for
    any draw the step is the subsampled Gaussian mechanism that is accounted for.
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
        if most < 1 or len(owners) != len(examples):
            raise ValueError(
                f"got {len(owners)} owners of {len(examples)} examples and {most} records of a "
                "user; expected an owner for each example, and at least 1"
            )
        super().__init__(objective, examples, shapes)
        # In order of name, which one user's records more or less do not change.
        self._owners, self._most, self._key = Owners.of(owners), most, key
        self._order, self._bounds = self._owners.groups()
        self._rows = np.minimum(np.diff(self._bounds), most)
        self.lengths = np.maximum.reduceat(lengths(examples)[self._order], self._bounds[:-1])

    def microbatches(self, indices: Sequence[int], token_budget: int) -> list[list[int]]:
        """Put users with equally many records together.

        Every user of a piece gets as many rows as the one with the most: users of one record next
        to a user of eight would be computed eight times.
        """
        if self.shapes is not None:
            return super().microbatches(indices, token_budget)
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

    def under(self, key: bytes) -> Users:
        same = copy(self)
        same._key = key
        return same

    def losses(self, model: nn.Module, batch: UnitBatch) -> Tensor:
        rows = self._objective.losses(model, batch.batch).view_as(batch.shares)
        weighted = rows * batch.shares.to(rows.dtype)
        # Zero times infinity is not zero.
        return torch.where(batch.shares > 0, weighted, rows.new_zeros(())).sum(1)

    def _records(self, unit: int) -> IntArray:
        records: IntArray = self._order[self._bounds[unit] : self._bounds[unit + 1]]
        return records

    def _chosen(self, unit: int, step: int) -> list[Any]:
        records = self._records(unit)
        if len(records) > self._most:
            name = self._owners.names[unit]
            generator = keys.generator(self._key, "records of a user", step, name)
            records = records[sorted(generator.choice(len(records), self._most, replace=False))]
        return [self._examples[i] for i in records.tolist()]

    def _new_shape(self, unit: int) -> Shape:
        if self.shapes is not None and self.shapes.places is not None:
            return (self._most, *self._objective.widest())
        rows = min(self._most, 1 << (int(self._rows[unit]) - 1).bit_length())
        records = self._records(unit).tolist()
        return (rows, *widest(map(self._widths, records)))


def finite_losses(
    data: TrainingSet,
    model: nn.Module,
    batch: UnitBatch,
    agreed: Callable[[bool], bool] | None = None,
) -> tuple[Tensor, UnitBatch]:
    """Return the losses of the units whose loss is finite, and their batch.

    The others contribute nothing: their forward is left out of the graph, since zero times NaN is
    NaN. What a unit adds still depends on that unit alone, so the guarantee holds. ``agreed``
    returns True if any of the ranks that must run the model together has such a unit.
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
