"""How a microbatch's clipped gradients are added up: eagerly, or by a program that is replayed."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from dpft.privacy import Clipper, LostRecordError, UnsupportedLayerError
from dpft.privacy.checks import random_state_kept
from dpft.privacy.clipping.clipper import Sums
from dpft.privacy.precision import full_precision, on_device
from dpft.privacy.program import Backend, Program, UntraceableError
from dpft.tasks.objectives.objective import Batch
from dpft.tasks.units import TrainingSet, UnitBatch, finite_losses
from dpft.training.statistics import StepStatistics

# After so many microbatches of a shape its program is compared with an eager step again, and then
# after four times as many.
_AGAIN = 64

# Largest difference of a norm or sum from the eager one, as a share of it.
TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 5e-2}
# What a parameter's sum may be off where its own size is rounding: a share of all sums' size.
_SHARE = 0.01


def add_clipped(
    data: TrainingSet,
    model: nn.Module,
    clipper: Clipper,
    batch: UnitBatch,
    records: int,
    statistics: StepStatistics,
    agreed: Callable[[bool], bool] | None = None,
) -> None:
    """Add the clipped gradients of one microbatch to ``.grad``.

    Raises:
        LostRecordError: see `Clipper.backward`; form the whole logical batch's sum again.
    """
    with exact(clipper):
        index = clipper.to_check(len(batch), batch.weights)
        if index is not None:
            # Layer rules are checked on a few units, in a separate forward that uses up no
            # random numbers.
            with random_state_kept(*model.parameters()):
                losses, some = finite_losses(data, model, batch.units(index), agreed)
                if len(losses):
                    clipper.check(losses, rows=some.rows_per_unit, weights=some.weights)
                else:  # the batch itself is checked
                    clipper.capture.take()
        if clipper.private and not clipper.careful:
            losses = data.losses(model, batch)  # the clipper drops records that are not finite
        else:
            losses, batch = finite_losses(data, model, batch, agreed)
        clipper.backward(losses, rows=batch.rows_per_unit, weights=batch.weights)
    statistics.observe(batch.of_units(losses), clipper.norms, clipper.factors, records)


def exact(clipper: Clipper) -> AbstractContextManager[None]:
    """Switch TF32 off: it rounds as the shape of the batch requires, which couples records."""
    return full_precision() if clipper.private else nullcontext()


def forget(clipper: Clipper) -> None:
    """Discard a sum that was not completed."""
    clipper.reset()
    for parameter in clipper.parameters.values():
        parameter.grad = None


class ProgramError(RuntimeError):
    """A program and the eager step differ by more than rounding. Nothing of it was released."""


@dataclass
class _Shape:
    """Microbatches of one shape: their program, once there is one, and the next that is checked."""

    program: Program | None = None
    eager: bool = False
    batches: int = 0
    next_check: int = 0  # until the program was found right


class Programs:
    """Adds microbatches to the clipper's sums, by one program for each of their shapes.

    The first microbatch of a shape also runs eagerly, with every check, and so do ever fewer later
    ones: the program must give the same norms and sums. Those of the program are kept, so that a
    run which continues from a checkpoint adds the same bits as one that was not interrupted. A
    shape whose step is no single program, or a wrong one at first, runs eagerly after a warning.

    Args:
        precision: of the products, a key of `TOLERANCE`.
        backend: what runs the programs.
    """

    def __init__(
        self,
        data: TrainingSet,
        model: nn.Module,
        clipper: Clipper,
        precision: str,
        backend: Backend = "inductor",
    ) -> None:
        self._data, self._model, self._clipper = data, model, clipper
        self._tolerance = TOLERANCE[precision]
        self._backend: Backend = backend
        self._shapes: dict[object, _Shape] = {}
        clipper.looks = False  # eager steps allow for the same rounding as programs

    def add(self, batch: UnitBatch, records: int, statistics: StepStatistics) -> None:
        """Add the clipped gradients of one microbatch of ``records`` records to ``.grad``.

        The caller has `exact` products for all microbatches of a step.

        Raises:
            LostRecordError: see `Clipper.backward`.
            ProgramError: a program that was found right has become wrong.
        """
        clipper, weights = self._clipper, batch.weights
        tensors = [*batch.batch.tensors.values(), batch.shares]
        key = (*batch.batch.tensors, *[(x.shape, x.dtype) for x in tensors], weights is None)
        shape = self._shapes.setdefault(key, _Shape())
        shape.batches += 1
        eagerly = partial(add_clipped, self._data, self._model, clipper, batch, records)
        if shape.eager or (weights is not None and not bool(weights.any())):
            eagerly(statistics)
            return
        placed = None if weights is None else on_device(weights, batch.shares.device)
        if shape.program is None or shape.batches >= shape.next_check:
            found = self._verified(shape, eagerly, batch, tensors, placed)
        else:
            found = shape.program(tensors, placed)
        if found is None:
            eagerly(statistics)
            return
        statistics.finite.append(found.finite)
        clipper.add(found, weights)
        losses = batch.of_units(found.losses)
        statistics.observe(losses, clipper.norms, clipper.factors, records)

    def settle(self, statistics: StepStatistics) -> None:
        """Raise LostRecordError if a record of the step was not finite."""
        flags = statistics.finite
        if flags and not bool(torch.stack(flags).all()):  # the one wait of a step
            self._clipper.lost = True
            raise LostRecordError

    def _verified(
        self,
        shape: _Shape,
        eagerly: Callable[[StepStatistics], None],
        batch: UnitBatch,
        tensors: Sequence[Tensor],
        weights: Tensor | None,
    ) -> Sums | None:
        """Return what the program gives, once it was compared; None if there is no program."""
        clipper = self._clipper
        parameters = clipper.parameters.values()
        before, policy = [p.grad for p in parameters], clipper.policy
        clipper.policy = copy.copy(policy)  # the eager step counts no norms
        for parameter in parameters:
            parameter.grad = None
        try:
            with random_state_kept(*parameters):
                eagerly(StepStatistics())
            sums, norms = [p.grad for p in parameters], clipper.norms
        finally:
            clipper.policy = policy
            for parameter, grad in zip(parameters, before, strict=True):
                parameter.grad = grad
        if shape.program is None:
            try:
                shape.program = self._program(batch, tensors, weights)
            except (UntraceableError, UnsupportedLayerError) as error:
                return self._refuse(shape, f"it is no single program ({error})")
        found = shape.program(tensors, weights)
        if not bool(found.finite):
            return found
        difference = self._difference(found, norms, sums, weights)
        if difference is None:
            shape.next_check = max(_AGAIN, 4 * shape.batches)
            return found
        if shape.next_check:
            raise ProgramError(
                f"compiled, {difference}; expected rounding alone. Nothing of this step was "
                "released, but earlier ones may be wrong: type compile=false for a new run, and "
                "please report this"
            )
        return self._refuse(shape, f"compiled, {difference}")

    def _refuse(self, shape: _Shape, reason: str) -> Sums | None:
        """Run a shape eagerly from now on."""
        if not any(one.eager for one in self._shapes.values()):
            warnings.warn(
                f"the step runs without compiling: {reason}. Type compile=false to leave out the "
                "attempt",
                stacklevel=2,
            )
        shape.eager, shape.program = True, None
        return None

    def _program(
        self, batch: UnitBatch, tensors: Sequence[Tensor], weights: Tensor | None
    ) -> Program:
        names = [*batch.batch.tensors]

        def losses(tensors: Sequence[Tensor]) -> Tensor:
            *given, shares = tensors
            rows = Batch(dict(zip(names, given, strict=True)))
            return self._data.losses(self._model, UnitBatch(rows, shares))

        rows = batch.rows_per_unit
        return Program(self._clipper, losses, tensors, weights, rows, self._backend)

    def _difference(
        self, found: Sums, norms: Tensor, sums: Sequence[Tensor | None], weights: Tensor | None
    ) -> str | None:
        """Say which norms or sums differ from the eager step's by more than rounding."""
        total = math.hypot(*(_size(x) for x in found.sums))
        pairs = {
            "the norms": (found.norms if weights is None else found.norms[weights != 0], norms)
        }
        for name, own, other in zip(self._clipper.parameters, found.sums, sums, strict=True):
            pairs[f"the sum of {name}"] = own, other if other is not None else own * 0
        for what, (own, other) in pairs.items():
            size, difference = _size(other), _size(own - other)
            if not difference <= self._tolerance * (size + _SHARE * total):
                # No numbers: they have no noise, and the message may be read by anyone.
                return f"{what} differ from the eager step's"
        return None


def _size(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))
