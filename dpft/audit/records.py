"""Canaries that are records: they go through model and clipping as every record does.

A canary is two records of noise - random words, random pixels - and its loss is the one's less
the other's: what all such records have in common cancels, so that its gradient is like no other
canary's. That loss is multiplied by a large number, which clipping makes vanish. Where clipping is
missing, or lets through more than its threshold, what a step releases points along the gradients of
the canaries that were in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from dpft.audit.canaries import Canaries
from dpft.config.errors import ConfigError
from dpft.privacy import keys, microbatches
from dpft.privacy.precision import full_precision
from dpft.privacy.shapes import BLANK, FixedShapes, Shape
from dpft.tasks.objectives.evaluation import evaluating
from dpft.tasks.objectives.images import LabelledImage
from dpft.tasks.objectives.records import LabelledText, Record, TextRecord
from dpft.tasks.units import UnitBatch, finite_losses

if TYPE_CHECKING:
    from dpft.models.load import LoadedModel
    from dpft.privacy import Clipper
    from dpft.tasks.base import Task
    from dpft.tasks.objectives.base import Losses, Objective


# Of the weights' norm: how far to either side a slope is taken. Smaller ones drown in rounding.
_STEP = 1e-3
# Tokens of a canary's text.
_WORDS = 12


class RecordCanaries(Canaries):
    """``m`` canaries from generated records, scored by their gradients' part in what is released.

    The real records' sum is known, as in `dpft.audit.gradients`, and subtracted. How far what is
    left goes along a canary's gradient is the slope of its loss in that direction: the difference
    of two losses, at weights a little to either side.

    Args:
        records: from `canary_records`, two for each canary.
        objective: of the task, for this model. Slopes are taken of its losses: in half precision
            the difference of two would drown in rounding.
        trained: gives the losses that the run trains on: those of ``objective``, in its precision.
        shapes: as of the run's own records, see `dpft.tasks.units.Records`.
        model: that is trained.
        clipper: which clips them.
        batch_size: expected, by which a release is divided.
        weight: of their losses.
        token_budget: of a microbatch.
        key: decides the coins; secret.

    Guarantee: an included canary is a unit of the run like any other: its loss is computed in the
    run's precision and in shapes that follow from it alone where the run's are fixed, depends on
    nothing else, and its gradient is clipped by the run's own clipper.
    """

    def __init__(
        self,
        records: Sequence[Record],
        objective: Objective,
        model: nn.Module,
        clipper: Clipper,
        *,
        trained: Losses,
        shapes: FixedShapes | None,
        batch_size: int,
        weight: float,
        token_budget: int,
        key: bytes,
    ) -> None:
        examples = [objective.encode(record) for record in records]
        self._trained = Pairs(trained, examples, weight, shapes)
        self._scored = Pairs(objective, examples, weight)
        super().__init__(len(self._scored), keys.generator(key, "audit", "records"))
        self._model = model
        self._clipper = clipper
        self._batch_size = batch_size
        self._token_budget = token_budget
        self._device = next(model.parameters()).device
        self._known: dict[str, Tensor] = {}

    def insert(self, slots: Sequence[int]) -> None:
        self._known = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in self._clipper.parameters.items()
        }
        chosen = [slot for slot in slots if self.included[slot]]
        for piece in self._trained.microbatches(chosen, self._token_budget):
            batch = self._trained.batch(piece, 0).to(self._device)
            with full_precision():
                losses, batch = finite_losses(self._trained, self._model, batch)
                self._clipper.backward(losses, rows=batch.rows_per_unit, real=batch.real)

    @torch.no_grad()
    def observe(self) -> None:
        """Value each canary by the slope of the canary's loss along what the step released."""
        parameters = self._clipper.parameters
        direction = {}
        for name, parameter in parameters.items():
            assert parameter.grad is not None
            direction[name] = (parameter.grad * self._batch_size - self._known[name]).float()
        self._known = {}
        length, size = _norm(direction.values()), _norm(parameters.values())
        if not 0 < length < np.inf:
            return
        step = _STEP * size / length
        here = {name: parameter.clone() for name, parameter in parameters.items()}
        ends = []
        for sign in (1, -1):
            for name, parameter in parameters.items():
                parameter.copy_(here[name] + sign * step * direction[name])
            ends.append(self._losses())
        for name, parameter in parameters.items():
            parameter.copy_(here[name])
        slopes = (ends[0] - ends[1]) / (2 * _STEP * size)
        self.add(np.where(np.isfinite(slopes), slopes, 0.0))

    def _losses(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        out = np.zeros(len(self))
        with self._clipper.paused(), evaluating(self._model):
            for piece in self._scored.microbatches(range(len(self)), self._token_budget):
                batch = self._scored.batch(piece, 0).to(self._device)
                out[piece] = self._scored.losses(self._model, batch).double().cpu().numpy()
        return out


class Pairs:
    """Units of two records each; a unit's loss is ``weight`` times the difference of theirs.

    Args:
        objective: gives the losses of records.
        examples: encoded records, two for each unit.
        weight: of the difference.
        shapes: where a unit's shapes may not depend on its company; None: where they may.
    """

    def __init__(
        self,
        objective: Losses,
        examples: Sequence[Any],
        weight: float,
        shapes: FixedShapes | None = None,
    ) -> None:
        self._objective = objective
        self._pairs = [tuple(examples[i : i + 2]) for i in range(0, len(examples), 2)]
        self.lengths = np.array([2 * max(a.length, b.length) for a, b in self._pairs], np.int64)
        self._weight = weight
        self.shapes = shapes

    def __len__(self) -> int:
        return len(self._pairs)

    def microbatches(self, indices: Sequence[int], token_budget: int) -> list[list[int]]:
        if self.shapes is None:
            return microbatches(indices, self.lengths, token_budget)
        return self.shapes.microbatches(indices, self._shape, token_budget)

    def batch(self, indices: Sequence[int], step: int) -> UnitBatch:
        signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
        weights = (self._weight * signs).repeat(len(indices), 1)
        if self.shapes is None:
            rows = [row for i in indices for row in self._pairs[i]]
            return UnitBatch(self._objective.collate(rows), weights)
        # All units of a microbatch have one shape.
        _, *widths = next(self._shape(i) for i in indices if i != BLANK)
        blank = (self._objective.blank(),) * 2
        rows = [row for i in indices for row in (blank if i == BLANK else self._pairs[i])]
        real = torch.tensor([i != BLANK for i in indices])
        return UnitBatch(self._objective.collate(rows, widths), weights, real)

    def losses(self, model: nn.Module, batch: UnitBatch) -> Tensor:
        rows = self._objective.losses(model, batch.batch).view_as(batch.weights)
        return (rows * batch.weights.to(rows.dtype)).sum(1)

    def _shape(self, unit: int) -> Shape:
        one, other = (self._objective.widths(example) for example in self._pairs[unit])
        return (2, *map(max, one, other))


def canary_records(
    task: Task, loaded: LoadedModel, like: Record, count: int, key: bytes
) -> list[Record]:
    """Records of noise, in the form of the task's own.

    Args:
        task: of the run; nothing but the form of its records is used, since a canary made of one
            would double that record's influence.
        loaded: the model that they are made for.
        like: a record whose form they take.
        count: how many canaries; there are twice as many records.
        key: decides which; secret.

    Raises:
        ConfigError: if records are of an unknown kind.
    """
    generator = keys.generator(key, "audit", "canary records")
    classes = max(len(getattr(task, "classes", ())), len(task.needs.classes), 2)

    def words() -> str:
        tokenizer = loaded.text_tokenizer
        return str(tokenizer.decode(generator.integers(len(tokenizer), size=_WORDS).tolist()))

    def label() -> int:
        return int(generator.integers(classes))

    def one() -> Record:
        if isinstance(like, TextRecord):
            return TextRecord(tuple(words() for _ in like.segments[:1]), words())
        if isinstance(like, LabelledText):
            return LabelledText(tuple(words() for _ in like.texts), label())
        if isinstance(like, LabelledImage) and loaded.image is not None:
            shape = (loaded.image.size, loaded.image.size, 3)
            pixels = generator.integers(256, size=shape, dtype=np.uint8)
            return LabelledImage(pixels, label(), "a canary")
        raise ConfigError(
            f"audit.records is {count}, but records of type {type(like).__name__} are of no kind "
            "that canaries are made of; type audit.records=0 audit.gradients=1000"
        )

    return [one() for _ in range(2 * count)]


def _norm(tensors: Iterable[Tensor]) -> float:
    return float(torch.stack([t.double().square().sum() for t in tensors]).sum().sqrt())
