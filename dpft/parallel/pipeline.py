"""Pipeline stages that clip: per device (He et al. 2022, section 4 and appendix C), or flat.

A stage holds some blocks of the model and is an ordinary clipper's model. The last one has one loss
for each record; every other takes, for each record, the inner product of its output with the
gradient that came back. Its input's gradient goes on at once; norms, factors and sums may wait
until the schedule has time: the halves B and W of zero-bubble schedules (Qi et al. 2024).

Per device, each stage clips its own part of a record's gradient to its own threshold, and no norm
leaves it. Flat clipping needs the norm of the whole gradient: once a round's microbatches are
through, squared norms are added up over the stages, one number for each record, and the sums are
formed then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from dpft.parallel.stages import Share
from dpft.privacy.clipping.batch import Book, Entry, cheapest_forms
from dpft.privacy.clipping.calls import Captured
from dpft.privacy.clipping.clipper import Clipper, Started
from dpft.privacy.clipping.rules import Use
from dpft.privacy.clipping.rules.uses import joint_squared_norm
from dpft.privacy.precision import full_precision

if TYPE_CHECKING:
    from dpft.tasks.units import UnitBatch

Losses = Callable[[nn.Module, "UnitBatch"], Tensor]
"""One loss per unit, ``(b,)``: `dpft.tasks.units.TrainingSet.losses`."""


class ClippedStage(PipelineStage):
    """One stage, whose backward leaves clipped sums in ``.grad``.

    Args:
        share: this stage.
        stage: further arguments of `torch.distributed.pipelining.PipelineStage`, with shapes: it
            would infer them by a forward, which the clipper would take for one of records.
        clipper: made on the stage's module alone.
        waits: whether sums wait for `settle`, since one group spans the stages.

    Attributes:
        losses: of each microbatch of records, ``(b,)``, on the last stage.
        norms, factors: of each, ``(b, K)`` with the ``K`` groups of this stage; of the whole model
            if flat.
    """

    submod: Share

    def __init__(
        self, share: Share, *stage: Any, clipper: Clipper, waits: bool = False, **named: Any
    ) -> None:
        super().__init__(share, *stage, **named)
        self.clipper = clipper
        self.losses: dict[int, Tensor] = {}
        self.norms: dict[int, Tensor] = {}
        self.factors: dict[int, Tensor] = {}
        self.waiting: dict[int, Started] = {}
        self._waits = waits
        self._of: Losses = _nothing
        self._batches: Sequence[UnitBatch | None] = ()
        self._captured: dict[int, Captured] = {}
        self._chunk = 0

    def load(self, losses: Losses, batches: Sequence[UnitBatch | None]) -> None:
        """Set losses and batches, of one shape, for the next round; None is not computed."""
        self._of, self._batches = losses, batches
        for held in (self.losses, self.norms, self.factors, self.waiting, self._captured):
            held.clear()

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **named: Any) -> Any:
        """Run the base's method, and keep the clipper's captures until the backward."""
        self._chunk = fwd_chunk_id
        self.clipper.take()
        output = super().forward_one_chunk(fwd_chunk_id, *arguments, **named)
        self._captured[fwd_chunk_id] = self.clipper.take()
        return output

    def forward_maybe_with_nosync(self, *received: Tensor, **_: Any) -> Tensor:
        """Run the forward of a chunk; the base calls it."""
        (expected,) = self._stage_meta.outputs or ()
        batch = self._batches[self._chunk]
        if batch is None:
            return torch.zeros(expected.shape, dtype=expected.dtype, device=self.device)
        output = self.submod.run(lambda model: self._of(model, batch), received)
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **named: Any) -> None:
        """Run the base's method, which calls `backward_maybe_with_nosync` without the chunk."""
        self._chunk = bwd_chunk_id
        super().backward_one_chunk(bwd_chunk_id, *arguments, **named)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **named: Any) -> None:
        """Run the base's method, as `backward_one_chunk` does."""
        self._chunk = bwd_chunk_id
        super().backward_weight_one_chunk(bwd_chunk_id, *arguments, **named)

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> tuple[tuple[Tensor | None, ...], Any]:
        """Run the backward of a chunk, or one of its halves; the base calls it."""
        batch = self._batches[self._chunk]
        if batch is None:
            return tuple(map(torch.zeros_like, bwd_kwargs.get("input_values", ()))), None
        if backward_type == "weight":
            self._finish(self._chunk, bwd_kwargs["param_groups"])
            return (), None
        outputs, gradients = bwd_kwargs["stage_output"], bwd_kwargs["output_grads"]
        (output,) = [outputs] if isinstance(outputs, Tensor) else outputs
        if gradients is None:
            losses = output
            self.losses[self._chunk] = batch.of_units(losses.detach())
        else:
            losses = inner_products(output, gradients[0], batch.rows_per_unit)
        captured, inputs = self._captured.pop(self._chunk), bwd_kwargs["input_values"]
        found, started = self.clipper.start(
            losses, captured, inputs, batch.rows_per_unit, batch.real
        )
        if backward_type == "full":
            self._finish(self._chunk, started)
            return tuple(found), None
        return tuple(found), started

    def _finish(self, chunk: int, started: Started) -> None:
        if self._waits:
            self.waiting[chunk] = started
            return
        self.clipper.finish(started)
        self.observe(chunk)

    def observe(self, chunk: int) -> None:
        """Keep the norms and factors of the batch that the clipper has just finished."""
        self.norms[chunk], self.factors[chunk] = self.clipper.norms, self.clipper.factors


@torch.no_grad()
def settle(stages: Sequence[ClippedStage], group: dist.ProcessGroup | None) -> None:
    """Form, with flat clipping, the sums of the microbatches that wait; collective."""
    held: list[tuple[ClippedStage, int, Any, Book]] = []
    squares: dict[int, Tensor] = {}
    for stage in stages:
        for chunk, started in sorted(stage.waiting.items()):
            batch, book = stage.clipper.batch_of(started), Book()
            held.append((stage, chunk, batch, book))

            def complete(name: str, uses: list[Use], book: Book = book, batch: Any = batch) -> None:
                uses = cheapest_forms(uses, batch.size, transient=False)
                book[name] = Entry(joint_squared_norm(uses), uses)

            batch.backward(complete)
            squared, dropped = batch.squared_group_norm(0, book)
            # A record that is dropped on one stage is dropped on all: infinity stays infinite.
            squared = squared if dropped is None else squared.masked_fill(dropped, torch.inf)
            squares[chunk] = squared if chunk not in squares else squares[chunk] + squared
    if not squares:
        return
    joint = torch.stack([squares[chunk] for chunk in sorted(squares)])
    dist.all_reduce(joint, group=group)
    row_of = {chunk: row for row, chunk in enumerate(sorted(squares))}
    with full_precision():
        for stage, chunk, batch, book in held:
            squared = joint[row_of[chunk]]
            lost = ~torch.isfinite(squared)
            dropped = lost if bool(lost.any()) else None
            batch.add_sums(0, book, batch.factors_of(0, squared, dropped))
            stage.clipper.conclude(batch, stage.waiting.pop(chunk).real)
            stage.observe(chunk)


def inner_products(output: Tensor, gradient: Tensor | None, rows: int = 1) -> Tensor:
    """Return for each record the inner product of a stage's output with what came back, ``(b,)``.

    Its gradient with respect to the output is what came back, exactly: in float64 the products of
    float32 numbers are exact, and their sum is not used.

    Args:
        output: ``(b * rows, T, d)``.
        gradient: likewise.
        rows: of one record, next to each other.
    """
    assert gradient is not None
    return (output.double() * gradient.double()).view(len(output) // rows, -1).sum(1)


def _nothing(model: nn.Module, batch: UnitBatch) -> Tensor:
    raise AssertionError("nothing was loaded")
