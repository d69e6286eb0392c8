"""Clipped sums of logical batches, formed by a pipeline that clips per device.

He et al. 2022, section 4 and appendix C: each rank holds a stage, some blocks of the model, which
is an ordinary clipper's model. The last one has one loss for each record; every other takes, for
each record, the inner product of its output with the gradient that came back. Each stage clips its
own part of a record's gradient to its own thresholds, and no norm leaves it.

A schedule sends a fixed number of microbatches of one shape through the stages: a round, in the
order 1F1B (Narayanan et al. 2021). The last round of a shape is filled up with zeros that no stage
computes. Every rank holds the records and cuts the batch in the same way, so only hidden states and
their gradients are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from dpft.config.errors import ConfigError
from dpft.parallel.cohort import Pipeline, RankGoneError
from dpft.parallel.stages import Cut, Share, cut, leave_others, part_of
from dpft.privacy.clipping import Clipper
from dpft.privacy.clipping.calls import Captured
from dpft.privacy.policies import PartOfPolicy
from dpft.privacy.spec import TWO_BACKWARDS, Partition

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
        self.clipper.capture.take()
        output = super().forward_one_chunk(fwd_chunk_id, *arguments, **named)
        self._captured[fwd_chunk_id] = self.clipper.capture.take()
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
        found = clipper.backward_to(inputs, losses, captured, batch.rows_per_unit, batch.weights)
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


class StageClipper:
    """Stands for the model's clipper where the model lies on several processes.

    Noise is scaled by the thresholds of all groups, and the counts that move them are released
    together. So every process knows all groups and thresholds, clips its own, and adds up counts.

    Args:
        whole: made on the whole model, with all groups; closed.
        part: the stage that this process holds.
        cut: of the model.
        ranks: all processes of the run.

    Attributes:
        clipper: of the stage.
        parameters: of the stage, by the whole model's names.
        sizes: of the whole model's trained parameters.
        own_groups: numbers of the groups whose norms this process sees.
        groups, policy: of the whole model, as of `Clipper`.

    Guarantee: every trained parameter of the model is in one stage and in one group, and one record
    changes the sums of all stages together by at most `dpft.privacy.spec.sensitivity`.

    Raises:
        ConfigError: for what cannot be clipped stage by stage.
    """

    private = True

    def __init__(self, whole: Clipper, part: nn.Module, cut: Cut, ranks: Pipeline) -> None:
        self.groups = whole.groups
        self.policy = whole.policy
        self.cohort = ranks
        self.sizes = MappingProxyType(dict(whole.sizes))
        self._running = False
        if whole.plan in TWO_BACKWARDS or not whole.private:
            raise ConfigError(
                f"plan {whole.plan!r} in a pipeline; expected one that takes one "
                "backward: type clip=per_device or clip=per_device_adaptive"
            )
        owners = [{cut.stage_of[name] for name in group.parameters} for group in self.groups]
        for group, stages in zip(self.groups, owners, strict=True):
            if len(stages) > 1:
                raise ConfigError(
                    f"clipping group {group.name!r} lies on the stages {sorted(stages)} of the "
                    "pipeline, so that its norm would have to travel; expected groups within a "
                    "stage: type clip=per_device (or per_layer, block_wise)"
                )
        self.own_groups = tuple(k for k, stages in enumerate(owners) if ranks.rank in stages)
        own = [self.groups[k] for k in self.own_groups]
        self.clipper = whole.for_part(part, own, PartOfPolicy(whole.policy, self.own_groups))
        held = self.clipper.parameters
        self.parameters = MappingProxyType({n: held[n] for n in self.sizes if n in held})

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The norms to which the whole model's groups are clipped now."""
        return self.policy.thresholds

    @property
    def unfinished(self) -> bool:
        """Return whether a logical batch broke off: ``.grad`` may hold a part of it."""
        return self._running or self.clipper.unfinished

    @contextmanager
    def running(self) -> Iterator[None]:
        """Mark the batch as `unfinished` if a part of it breaks off; refuse to go on behind one."""
        if self.unfinished:
            raise RuntimeError(
                "the last pass through the pipeline broke off and may have left sums in .grad; "
                "expected a fresh start: set .grad to None, call reset(), and begin the logical "
                "batch again"
            )
        self._running = True
        yield
        self._running = False

    def reset(self) -> None:
        """Reset the clipper; as of `Clipper`, on every process."""
        self.clipper.reset()
        self.policy.reset()
        self._running = False

    def collect(self) -> None:
        """Add up counts over the stages; a stage without records has sums of zero."""
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.policy.collect(self.cohort, next(iter(self.parameters.values())).device)

    def own_slice(self, grad: Tensor) -> tuple[Tensor, int]:
        """Return all of it: a stage holds whole parameters."""
        return grad.view(-1), 0

    def whole(self, grad: Tensor) -> Tensor:
        """Return it: a stage holds whole parameters."""
        return grad

    def check_rows(self, rows: int) -> None:
        """Check, as of `Clipper`, that a record may have so many rows."""
        self.clipper.check_rows(rows)

    def close(self) -> None:
        """Remove all hooks."""
        self.clipper.close()


class Observed(NamedTuple):
    """Noiseless figures of a microbatch: norms and factors ``(b, K)`` of the rank's own groups."""

    losses: Tensor | None  # on the rank with the last stage
    norms: Tensor
    factors: Tensor


class PipelinedSums:
    """Runs logical batches through the stages of a model.

    Args:
        part: the stage of this rank, on its device.
        clipper: made on it.
        cut: of the model.
        ranks: all ranks.

    Attributes:
        stage: the module of this rank.
    """

    def __init__(self, part: nn.Module, clipper: StageClipper, cut: Cut, ranks: Pipeline) -> None:
        if ranks.microbatches < cut.count:
            raise ConfigError(
                f"{ranks.microbatches} microbatches in a round through {cut.count} stages; "
                f"expected {cut.count} or more: type parallel.microbatches={cut.count}"
            )
        self.stage = Share(part, first=ranks.rank == 0, last=ranks.rank == cut.count - 1)
        self.clipper = clipper
        self.cut = cut
        self._ranks = ranks
        self._device = next(self.stage.parameters()).device
        self._shape: tuple[int, ...] = ()
        self._runner: Any = None
        self._clipped: ClippedStage | None = None

    def add(self, losses: Losses, batches: Iterable[UnitBatch]) -> list[Observed]:
        """Add the clipped sums of a logical batch to ``.grad``, on every rank.

        Args:
            losses: return a microbatch's losses and call the model once.
            batches: the same on every rank; those of one shape are next to each other.
        """
        found: list[Observed] = []
        for shape, run in groupby(batches, _shape):
            equal, size = list(run), self._ranks.microbatches
            for first in range(0, len(equal), size):
                found += self._round(losses, shape, equal[first : first + size])
        return found

    def losses(self, observed: Sequence[Observed]) -> list[Tensor]:
        """Return the losses of each microbatch, on every rank."""
        sizes = [len(each.norms) for each in observed]
        if not sizes:
            return []
        held = [each.losses for each in observed if each.losses is not None]
        flat = torch.cat(held).float() if held else torch.empty(sum(sizes), device=self._device)
        dist.broadcast(flat, self._ranks.size - 1)
        return list(flat.split(sizes))

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank; collective."""
        return self._ranks.any(flag)

    def over_stages(self, numbers: Tensor) -> Tensor:
        """Return the sums of the numbers that the ranks have."""
        total = numbers.to(self._device, copy=True)
        dist.all_reduce(total)
        return total

    def _round(
        self, losses: Losses, shape: tuple[int, ...], batches: Sequence[UnitBatch]
    ) -> list[Observed]:
        stage = self._prepared(shape)
        filled = [batch.to(self._device) for batch in batches]
        size = self._ranks.microbatches
        stage.load(losses, [*filled, *[None] * (size - len(filled))])
        # The last stage returns its losses already; a schedule needs a tensor to split.
        target = torch.empty(size, device=self._device) if stage.is_last else None
        with self.clipper.running():
            try:
                self._runner.step(target=target, return_outputs=False)
            except Exception as error:
                self._ranks.broken = True
                if isinstance(error, RuntimeError) and error.__cause__ is not None:
                    raise error.__cause__ from None  # of a forward, which the base wraps
                if isinstance(error, dist.DistError) or "gloo" in str(error):
                    raise RankGoneError(error) from error
                raise
        return [
            Observed(stage.losses.get(chunk), stage.norms[chunk], stage.factors[chunk])
            for chunk in range(len(filled))
        ]

    def _prepared(self, shape: tuple[int, ...]) -> ClippedStage:
        """Return the stage for microbatches of a shape, with a schedule for them."""
        if self._clipped is not None and shape == self._shape:
            return self._clipped
        units, rows, positions = shape
        cut, stage = self.cut, self._ranks.rank
        hidden = torch.empty(rows, positions, cut.width, dtype=cut.dtype, device="meta")
        hidden.requires_grad_()
        ends = torch.empty(units, device="meta")
        self._clipped = ClippedStage(
            self.stage,
            stage,
            cut.count,
            self._device,
            input_args=ends if stage == 0 else hidden,
            output_args=ends if stage == cut.count - 1 else hidden,
            clipper=self.clipper.clipper,
        )
        self._runner = Schedule1F1B(
            self._clipped,
            n_microbatches=self._ranks.microbatches,
            loss_fn=_losses,
            scale_grads=False,
        )
        self._shape = shape
        return self._clipped


def _shape(batch: UnitBatch) -> tuple[int, int, int]:
    """Return the numbers of units, of rows of the model's batch, and of positions."""
    rows, positions = batch.batch.tensors["input_ids"].shape
    return len(batch), rows, positions


def _losses(losses: Tensor, target: Tensor) -> Tensor:
    return losses


def pipelined(
    model: nn.Module,
    whole: Clipper,
    how: Partition,
    ranks: Pipeline,
    device: torch.device | None = None,
) -> tuple[StageClipper, PipelinedSums]:
    """Divide a model over the ranks of a pipeline.

    Args:
        model: the same on every rank, on the CPU if it is too large for one device. It keeps the
            tensors of this rank's stage; the others lose their values here.
        whole: a clipper made on it, with the groups of the whole run; closed here.
        how: ``per_device``, with as many devices as there are ranks.
        ranks: all ranks.
        device: of this rank's stage; None leaves it where it is.

    Raises:
        ConfigError, ValueError: for what cannot be cut, or not be clipped stage by stage.
    """
    whole.close()
    where = cut(model, how)
    if where.count != ranks.size:
        raise ConfigError(
            f"{where.count} devices of clip=per_device for {ranks.size} stages, one for each rank; "
            f"expected as many: type clip.count={ranks.size}"
        )
    part = part_of(model, where, ranks.rank)
    leave_others(model, part)
    if device is not None:
        part.to(device)
    ranks.owners = where.stage_of
    clipper = StageClipper(whole, part, where, ranks)
    return clipper, PipelinedSums(part, clipper, where, ranks)
