"""Pipeline stages that clip: per device (He et al. 2022, section 4 and appendix C), or flat.

A stage holds some blocks of the model and is an ordinary clipper's model. The last one has one loss
for each record; every other takes, for each record, the inner product of its output with the
gradient that came back, which has that gradient. Its input's gradient goes on to the stage before
at once; norms, factors and sums may wait until the schedule has time for them: the two halves that
zero-bubble schedules call B and W (Qi et al. 2024).

Per device, each stage clips its own part of a record's gradient to its own threshold, and no norm
leaves it. Flat clipping needs the norm of the whole gradient: once all microbatches are through,
squared norms are added up over the stages, 8 bytes for each record, and the sums are formed then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from dpft.privacy.clipping.clipper import Captured, Clipper, Started
from dpft.privacy.clipping.plans.batch import Book, Entry
from dpft.privacy.clipping.plans.bookkeeping import cheapest_forms
from dpft.privacy.clipping.rules import Use


class ClippedStage(PipelineStage):
    """One stage, whose backward leaves clipped sums in ``.grad``.

    Args:
        stage: arguments of `torch.distributed.pipelining.PipelineStage`.
        clipper: made on the stage's module alone, with one group.
        real: of a microbatch's number, which of its rows are of records; None: all are.
        flat: the ranks whose squared norms are added up; None: clipped per device.

    Attributes:
        norms: of each microbatch, ``(b, 1)``: of this stage's part, or of the whole if flat.
    """

    def __init__(
        self,
        *stage: Any,
        clipper: Clipper,
        real: Callable[[int], Tensor] | None = None,
        flat: dist.ProcessGroup | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*stage, **named)
        self.clipper = clipper
        self.norms: dict[int, Tensor] = {}
        self._real = real
        self._flat = flat
        self._captured: dict[int, Captured] = {}
        self._waiting: dict[int, Started] = {}
        self._chunk = 0

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **named: Any) -> Any:
        """As of the base; what the clipper has captured is kept until the chunk comes back."""
        self.clipper.take()
        output = super().forward_one_chunk(fwd_chunk_id, *arguments, **named)
        self._captured[fwd_chunk_id] = self.clipper.take()
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **named: Any) -> None:
        """As of the base, which calls `backward_maybe_with_nosync` without saying which chunk."""
        self._chunk = bwd_chunk_id
        super().backward_one_chunk(bwd_chunk_id, *arguments, **named)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **named: Any) -> None:
        """As `backward_one_chunk`."""
        self._chunk = bwd_chunk_id
        super().backward_weight_one_chunk(bwd_chunk_id, *arguments, **named)

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> tuple[tuple[Tensor | None, ...], Any]:
        """The backward of a chunk, or one of its halves; called by the base."""
        if backward_type == "weight":
            self._finish(self._chunk, bwd_kwargs["param_groups"])
            return (), None
        gradients, started = self._start(
            self._chunk,
            bwd_kwargs["stage_output"],
            bwd_kwargs["output_grads"],
            bwd_kwargs["input_values"],
        )
        if backward_type == "full":
            self._finish(self._chunk, started)
            return gradients, None
        return gradients, started

    def _start(
        self,
        chunk: int,
        outputs: Tensor | Sequence[Tensor],
        gradients: Sequence[Tensor | None] | None,
        inputs: Sequence[Any],
    ) -> tuple[tuple[Tensor | None, ...], Started]:
        listed = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        losses = listed[0] if gradients is None else inner_products(listed, gradients)
        real = None if self._real is None else self._real(chunk)
        wanted = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
        found, started = self.clipper.start(losses, self._captured.pop(chunk), wanted, real)
        by_input = {id(x): gradient for x, gradient in zip(wanted, found, strict=True)}
        return tuple(by_input.get(id(x)) for x in inputs), started

    def _finish(self, chunk: int, started: Started) -> None:
        if self._flat is not None:
            self._waiting[chunk] = started
            return
        self.clipper.finish(started)
        self.norms[chunk] = self.clipper.norms

    @torch.no_grad()
    def settle(self) -> int:
        """With flat clipping, form the sums once the schedule has run; on every rank.

        Returns:
            Bytes that this rank gave to the reduction of norms.
        """
        if self._flat is None:
            return 0
        clipper, own = self.clipper, []
        batches = {chunk: clipper.batch_of(s) for chunk, s in sorted(self._waiting.items())}
        books: dict[int, Book] = {}
        for chunk, batch in batches.items():
            book = books[chunk] = {}

            def complete(name: str, uses: list[Use], book: Book = book, batch: Any = batch) -> None:
                uses = cheapest_forms(uses, batch.size, transient=False)
                book[name] = Entry(batch.squared_norm(name, uses), uses)

            batch.backward(complete)
            squared, dropped = batch.squared_group_norm(0, book)
            # A record that is dropped on one stage is dropped on all: infinity stays infinite.
            own.append(squared if dropped is None else squared.masked_fill(dropped, torch.inf))
        joint = torch.stack(own)
        dist.all_reduce(joint, group=self._flat)
        for squared, (chunk, batch) in zip(joint, batches.items(), strict=True):
            lost = ~torch.isfinite(squared)
            dropped = lost if bool(lost.any()) else None
            factors = batch.factors_of(0, squared, dropped)
            batch.add_sums(0, books[chunk], factors)
            clipper.conclude(batch, self._waiting.pop(chunk).real)
            self.norms[chunk] = clipper.norms
        return joint.numel() * joint.element_size()


def inner_products(outputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
    """For each record the inner product of a stage's outputs with what came back, ``(b,)``.

    Its gradient with respect to the outputs is what came back, exactly: in float64 the products of
    float32 numbers are exact, and their sum matters to nobody.
    """
    total = torch.zeros((), dtype=torch.float64, device=outputs[0].device)
    for output, gradient in zip(outputs, gradients, strict=True):
        if gradient is not None and output.requires_grad:
            total = total + (output.double() * gradient.double()).flatten(1).sum(1)
    return total
