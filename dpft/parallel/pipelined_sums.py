"""Clipped sums of logical batches, formed by a pipeline.

A schedule sends a fixed number of microbatches of one shape through the stages: a round. The last
round of a shape is filled up with zeros that no stage computes. Every rank holds the records and
cuts the batch in the same way, so only hidden states and their gradients are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.pipelining as schedules
from torch import Tensor, nn

from dpft.config.errors import ConfigError
from dpft.parallel.cohort import Pipelines, RankGoneError
from dpft.parallel.pipeline import ClippedStage, Losses, settle
from dpft.parallel.stage_clippers import StageClippers
from dpft.parallel.stages import Cut, Share, cut, leave_others, part_of
from dpft.privacy.clipping import Clipper
from dpft.privacy.spec import Partition

if TYPE_CHECKING:
    from dpft.tasks.units import UnitBatch


class ScheduleKind(NamedTuple):
    """A schedule of torch.distributed.pipelining."""

    runner: Any
    each: int  # stages of each rank
    turns: bool = False  # whether the second stages are in the opposite order of ranks


SCHEDULES: Mapping[str, ScheduleKind] = MappingProxyType(
    {
        "gpipe": ScheduleKind(schedules.ScheduleGPipe, 1),
        "1f1b": ScheduleKind(schedules.Schedule1F1B, 1),
        "interleaved": ScheduleKind(schedules.ScheduleInterleaved1F1B, 2),
        "zero_bubble": ScheduleKind(schedules.ScheduleInterleavedZeroBubble, 2),
        "zbv": ScheduleKind(schedules.ScheduleZBVZeroBubble, 2, turns=True),
    }
)
"""GPipe (Huang et al. 2019), 1F1B and interleaved (Narayanan et al. 2021), zero bubble (Qi et al.
2024)."""


def stages(schedule: str, ranks: int) -> int:
    """Return how many stages a pipeline of so many ranks has."""
    return SCHEDULES[schedule].each * ranks


def places(schedule: str, rank: int, ranks: int) -> tuple[int, ...]:
    """Return the stages that a rank of a pipeline holds."""
    kind = SCHEDULES[schedule]
    if kind.turns:
        return rank, kind.each * ranks - 1 - rank
    return tuple(rank + ranks * turn for turn in range(kind.each))


def _holder(stage: int, ranks: Pipelines) -> int:
    """Return the rank of the first pipeline that holds a stage."""
    of_pipeline = range(ranks.length)
    return next(r for r in of_pipeline if stage in places(ranks.schedule, r, ranks.length))


class Observed(NamedTuple):
    """Noiseless figures of a microbatch: norms and factors ``(b, K)`` of `PipelinedSums.groups`."""

    losses: Tensor | None  # on the rank with the last stage
    norms: Tensor
    factors: Tensor


class PipelinedSums:
    """Runs logical batches through the stages of a model.

    Args:
        parts: the stages in this rank's `places`, by number, on its device.
        clippers: made on them.
        cut: of the model.
        ranks: of all pipelines, with schedule and number of microbatches.

    Attributes:
        stages: the modules of this rank.
        pipeline: number of this rank's pipeline, whose ranks go through the same records.
        groups: the numbers of the groups whose norms this rank reports. With flat clipping norms
            are the same on all ranks of a pipeline, and the first reports them.
    """

    def __init__(
        self, parts: Mapping[int, nn.Module], clippers: StageClippers, cut: Cut, ranks: Pipelines
    ) -> None:
        count, microbatches = cut.count, ranks.microbatches
        if microbatches < count or microbatches % ranks.length:
            raise ConfigError(
                f"{microbatches} microbatches in a round through {count} stages on {ranks.length} "
                f"ranks; expected a multiple of {ranks.length}, {count} or more: type "
                f"parallel.microbatches={count}"
            )
        self._shares = {
            stage: Share(part, first=stage == 0, last=stage == count - 1)
            for stage, part in sorted(parts.items())
        }
        self.clippers = clippers
        self.cut = cut
        self.stages = nn.ModuleList(self._shares.values())
        self.pipeline = ranks.rank // ranks.length
        self.groups = clippers.own_groups
        if clippers.flat and ranks.position:
            self.groups = ()
        self._kind = SCHEDULES[ranks.schedule]
        self._microbatches = microbatches
        self._last = _holder(count - 1, ranks)
        self._ranks = ranks
        self._device = next(self.stages.parameters()).device
        self._shape: tuple[int, ...] = ()
        self._runner: Any = None
        self._stages: list[ClippedStage] = []

    def add(self, losses: Losses, batches: Iterable[UnitBatch]) -> list[Observed]:
        """Add the clipped sums of a logical batch to ``.grad``, on every rank of the pipeline.

        Args:
            losses: return a microbatch's losses and call the model once.
            batches: the same on every rank; those of one shape are next to each other.
        """
        found: list[Observed] = []
        for shape, run in groupby(batches, _shape):
            equal = list(run)
            for first in range(0, len(equal), self._microbatches):
                found += self._round(losses, shape, equal[first : first + self._microbatches])
        return found

    def losses(self, observed: Sequence[Observed]) -> list[Tensor]:
        """Return the losses of each microbatch, on every rank of the pipeline."""
        sizes = [len(each.norms) for each in observed]
        if not sizes:
            return []
        held = [each.losses for each in observed if each.losses is not None]
        flat = torch.cat(held).float() if held else torch.empty(sum(sizes), device=self._device)
        source = dist.get_global_rank(self._ranks.peers, self._last)
        dist.broadcast(flat, source, group=self._ranks.peers)
        return list(flat.split(sizes))

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank of the run; collective."""
        return self._ranks.any(flag)

    def over_stages(self, numbers: Tensor) -> Tensor:
        """Return the sums of the numbers that the ranks of this pipeline have."""
        total = numbers.to(self._device, copy=True)
        dist.all_reduce(total, group=self._ranks.peers)
        return total

    def _round(
        self, losses: Losses, shape: tuple[int, ...], batches: Sequence[UnitBatch]
    ) -> list[Observed]:
        self._prepare(shape)
        filled = [batch.to(self._device) for batch in batches]
        rest = [None] * (self._microbatches - len(filled))
        for stage in self._stages:
            stage.load(losses, [*filled, *rest])
        last = any(stage.is_last for stage in self._stages)
        # The last stage returns its losses already; a schedule needs a tensor to split.
        target = torch.empty(self._microbatches, device=self._device) if last else None
        with self.clippers.running():
            try:
                self._runner.step(target=target, return_outputs=False)
                if self.clippers.flat:
                    settle(self._stages, self._ranks.peers)
            except Exception as error:
                self._ranks.broken = True
                if isinstance(error, RuntimeError) and error.__cause__ is not None:
                    raise error.__cause__ from None  # of a forward, which the base wraps
                if isinstance(error, dist.DistError) or "gloo" in str(error):
                    raise RankGoneError(error) from error
                raise
        found, given = [], len(self.groups)
        stages = self._stages[:1] if self.clippers.flat else self._stages
        for chunk in range(len(filled)):
            held = [stage.losses[chunk] for stage in self._stages if stage.is_last]
            norms = torch.cat([stage.norms[chunk] for stage in stages], 1)[:, :given]
            factors = torch.cat([stage.factors[chunk] for stage in stages], 1)[:, :given]
            found.append(Observed(held[0] if held else None, norms, factors))
        return found

    def _prepare(self, shape: tuple[int, ...]) -> None:
        """Make a schedule for microbatches of a shape, unless the last one was for that shape."""
        if shape == self._shape:
            return
        units, rows, positions = shape
        cut = self.cut
        hidden = torch.empty(rows, positions, cut.width, dtype=cut.dtype, device="meta")
        hidden.requires_grad_()
        ends = torch.empty(units, device="meta")
        self._stages = [
            ClippedStage(
                share,
                stage,
                cut.count,
                self._device,
                input_args=ends if stage == 0 else hidden,
                output_args=ends if stage == cut.count - 1 else hidden,
                group=self._ranks.peers,
                clipper=self.clippers.clippers[stage],
                waits=self.clippers.flat,
            )
            for stage, share in self._shares.items()
        ]
        self._runner = self._kind.runner(
            self._stages if self._kind.each > 1 else self._stages[0],
            n_microbatches=self._microbatches,
            loss_fn=_losses,
            scale_grads=False,
        )
        self._shape = shape


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
    ranks: Pipelines,
    device: torch.device | None = None,
) -> tuple[StageClippers, PipelinedSums]:
    """Divide a model over the ranks of a pipeline.

    Args:
        model: the same on every rank, on the CPU if it is too large for one device. It keeps the
            tensors of this rank's stages; the others lose their values here.
        whole: a clipper made on it, with the groups of the whole run; closed here.
        how: ``per_device``, with as many devices as there are stages.
        ranks: all ranks.
        device: of this rank's stages; None leaves them where they are.

    Raises:
        ConfigError, ValueError: for what cannot be cut, or not be clipped stage by stage.
    """
    whole.close()
    where, schedule = cut_for(model, how, ranks), ranks.schedule
    held = places(schedule, ranks.position, ranks.length)
    parts = {stage: part_of(model, where, stage) for stage in held}
    leave_others(model, parts.values())
    for part in parts.values():
        if device is not None:
            part.to(device)
    ranks.owners = MappingProxyType({n: _holder(k, ranks) for n, k in where.stage_of.items()})
    clippers = StageClippers(whole, parts, where, ranks, ranks.copies)
    return clippers, PipelinedSums(parts, clippers, where, ranks)


def cut_for(model: nn.Module, how: Partition, ranks: Pipelines) -> Cut:
    """Cut a model into as many stages as the ranks of a pipeline take; raises as `pipelined`."""
    where = cut(model, how)
    expected = stages(ranks.schedule, ranks.length)
    if where.count != expected:
        raise ConfigError(
            f"{where.count} devices of clip=per_device for {expected} stages (schedule "
            f"{ranks.schedule} on {ranks.length} ranks); expected as many: type "
            f"clip.count={expected}"
        )
    return where


def held_here(model: nn.Module, how: Partition, ranks: Pipelines) -> set[int]:
    """Return the ``id`` of each parameter of this rank's stages; the model stays as it is."""
    where = cut_for(model, how, ranks)
    numbers = places(ranks.schedule, ranks.position, ranks.length)
    return {id(p) for stage in numbers for p in part_of(model, where, stage).parameters()}
