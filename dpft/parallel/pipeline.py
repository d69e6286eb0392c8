"""A pipeline stage that clips: per device (He et al. 2022, section 4 and appendix C).

A stage holds some blocks of the model and is an ordinary clipper's model. The last one has one loss
for each record; every other takes, for each record, the inner product of its output with the
gradient that came back. Each stage clips its own part of a record's gradient to its own thresholds,
and no norm leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from dpft.parallel.stages import Share
from dpft.privacy.clipping.calls import Captured
from dpft.privacy.clipping.clipper import Clipper

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

    Attributes:
        losses: of each microbatch of records, ``(b,)``, on the last stage.
        norms, factors: of each, ``(b, K)`` with the ``K`` groups of this stage.
    """

    submod: Share

    def __init__(self, share: Share, *stage: Any, clipper: Clipper, **named: Any) -> None:
        super().__init__(share, *stage, **named)
        self.clipper = clipper
        self.losses: dict[int, Tensor] = {}
        self.norms: dict[int, Tensor] = {}
        self.factors: dict[int, Tensor] = {}
        self._of: Losses = _nothing
        self._batches: Sequence[UnitBatch | None] = ()
        self._captured: dict[int, Captured] = {}
        self._chunk = 0

    def load(self, losses: Losses, batches: Sequence[UnitBatch | None]) -> None:
        """Set losses and batches, of one shape, for the next round; None is not computed."""
        self._of, self._batches = losses, batches
        for held in (self.losses, self.norms, self.factors, self._captured):
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

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> tuple[tuple[Tensor | None, ...], Any]:
        """Run the backward of a chunk; the base calls it."""
        batch = self._batches[self._chunk]
        if batch is None:
            return tuple(map(torch.zeros_like, bwd_kwargs["input_values"])), None
        outputs, gradients = bwd_kwargs["stage_output"], bwd_kwargs["output_grads"]
        (output,) = [outputs] if isinstance(outputs, Tensor) else outputs
        if gradients is None:
            self.losses[self._chunk] = batch.of_units(output.detach())
            # No stage adds anything of a record whose loss is not finite.
            losses = torch.where(output.isfinite(), output, 0.0)
        else:
            losses = inner_products(output, gradients[0], batch.rows_per_unit)
        captured, inputs = self._captured.pop(self._chunk), bwd_kwargs["input_values"]
        clipper = self.clipper
        found, started = clipper.start(losses, captured, inputs, batch.rows_per_unit, batch.real)
        clipper.finish(started)
        self.norms[self._chunk], self.factors[self._chunk] = clipper.norms, clipper.factors
        return tuple(found), None


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
