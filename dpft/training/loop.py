"""The training loop: one noisy step per logical batch, whatever the clipping style."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dpft.config.errors import DivergedError, TrainingError
from dpft.config.optim import Optim
from dpft.config.schedule import lr_factor
from dpft.models.load import Reparametrisation
from dpft.parallel.cohort import Pieces, SingleProcess, TrainingCohort, own_part, together
from dpft.privacy import Clipper, LostRecordError, Mechanism, keys
from dpft.privacy.noise import Released
from dpft.privacy.precision import full_precision
from dpft.privacy.shapes import BLANK
from dpft.privacy.untouched import random_state_kept
from dpft.tasks.units import TrainingSet, UnitBatch, Units, finite_losses

if TYPE_CHECKING:
    from dpft.audit.auditor import Auditor
    from dpft.parallel.pipelined_sums import PipelinedSums


@dataclass
class StepStatistics:
    """What this process saw of one step. Noiseless figures of private records: never published.

    Attributes:
        share: which share of the batch it was; ranks of one pipeline have one, and count it once.
            None: nobody else's.
        groups: the numbers of the clipping groups that norms and factors are of; None: all.
        signal: norm of the mean of the clipped gradients before noise, where it was asked for.
        noise: the root of the expected square of its noise's norm, likewise.
    """

    share: int | None = None
    groups: Sequence[int] | None = None
    records: int = 0
    left_out: int = 0
    microbatches: int = 0
    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    factors: list[Tensor] = field(default_factory=list)
    released: Released = field(default_factory=Released)
    signal: float | None = None
    noise: float | None = None
    seconds: float = 0.0

    @property
    def dropped(self) -> int:
        """Records of this process that added nothing, since they were not finite."""
        return self.left_out + sum(int((one == 0).any(1).sum()) for one in self.factors)

    def summary(self, cohort: TrainingCohort | None = None) -> dict[str, Any]:
        """Plain numbers for the private metrics log; None where the batch was empty.

        Args:
            cohort: ranks that each saw a share of the batch; all must ask, and get the numbers of
                the whole batch, to rounding. Three numbers a group travel. None: this process.
        """
        shares: dict[int, list[float]] = {}
        groups: dict[int, list[list[float]]] = {}
        gathered = (cohort or SingleProcess()).gather((self.share, *self._sums()))
        for rank, (share, counts, own) in enumerate(gathered):
            key = rank if share is None else share
            # Ranks of one share count the same, but for records that one stage has dropped.
            shares[key] = [*map(max, counts, shares.get(key, counts))]
            for group, numbers in own:
                groups.setdefault(group, []).append(numbers)
        totals = map(sum, zip(*shares.values(), strict=True))
        records, dropped, microbatches, seen, losses = totals
        out: dict[str, Any] = {
            "records": records,
            "dropped": dropped,
            "microbatches": microbatches,
            "loss": losses / seen if seen else None,
            "seconds": self.seconds,
        }
        if groups:
            sums = [list(zip(*groups[group], strict=True)) for group in sorted(groups)]
            out["norm_mean"] = [math.fsum(norms) / seen for norms, _, _ in sums]
            out["norm_max"] = [max(largest) for _, _, largest in sums]
            out["clipped"] = [sum(clipped) / seen for _, clipped, _ in sums]
        if self.released.thresholds:
            out["clip_thresholds"] = list(self.released.thresholds)
        return out

    def norms_of_all(self, cohort: TrainingCohort) -> list[Tensor]:
        """Norms ``(b, K)`` of the records of every share that has any; all ranks must ask."""
        columns: dict[int, dict[int, list[float]]] = {}
        mine = torch.cat(self.norms).T.tolist() if self.norms else []
        gathered = cohort.gather((self.share, self.groups, mine))
        for rank, (share, groups, norms) in enumerate(gathered):
            numbers = range(len(norms)) if groups is None else groups
            found = columns.setdefault(rank if share is None else share, {})
            found.update(zip(numbers, norms, strict=False))  # a share may be empty
        return [
            torch.tensor([found[group] for group in sorted(found)], dtype=torch.float64).T
            for found in columns.values()
            if any(found.values())
        ]

    def _sums(self) -> tuple[list[float], list[tuple[int, list[float]]]]:
        """Numbers that ranks can add up.

        Returns:
            Records, dropped ones, microbatches, losses, their sum; and for each group that was
            seen its number, the sum of norms, how many were clipped, and the largest norm.
        """
        dropped, seen, total = self.left_out, 0, 0.0
        groups: list[tuple[int, list[float]]] = []
        if self.losses:
            losses = torch.cat(self.losses)
            # One that is not finite is among them where the clipper drops it.
            seen, figures = len(losses), [losses.nan_to_num(0.0, 0.0, 0.0).sum()]
            if self.norms and seen:
                norms, factors = torch.cat(self.norms), torch.cat(self.factors)
                clipped = (factors < 1).sum(0).to(norms.dtype)
                silenced = (factors == 0).any(1).sum()
                figures += [silenced, torch.stack([norms.sum(0), clipped, norms.amax(0)], 1)]
            # Read in one go: the host waits for each.
            flat = [x.to(losses.device, torch.float64).flatten() for x in figures]
            total, *others = torch.cat(flat).tolist()
            if others:
                dropped += int(others.pop(0))
                own = range(len(others) // 3) if self.groups is None else self.groups
                groups = [(k, others[3 * n : 3 * n + 3]) for n, k in enumerate(own)]
        return [self.records, dropped, self.microbatches, seen, total], groups


def train(
    *,
    model: nn.Module,
    data: TrainingSet,
    clipper: Clipper,
    mechanism: Mechanism,
    optimizer: torch.optim.Optimizer,
    settings: Optim,
    key: bytes,
    start: int = 0,
    reparametrisation: Reparametrisation | None = None,
    audit: Auditor | None = None,
    cohort: TrainingCohort | None = None,
    pipeline: PipelinedSums | None = None,
    spend: Callable[[int, Released], None] = lambda step, released: None,
    after_step: Callable[[int, StepStatistics], None] = lambda step, statistics: None,
    moving: Callable[[], AbstractContextManager[None]] = nullcontext,
    watched: Callable[[int], bool] = lambda step: False,
) -> None:
    """Run steps ``start`` to ``mechanism.steps - 1``.

    Everything random in a step follows from ``(key, step)``, so a run that continues from a
    checkpoint repeats what an unbroken one would have done; where thresholds adapt, the clipper
    must have the checkpoint's estimates.

    Args:
        model: on its device, in training mode; only what ``clipper.parameters`` names is moved.
        data: the units of privacy, with one loss each; their number is the mechanism's ``N``.
        clipper: made on ``model``; its groups and thresholds must be the mechanism's.
        mechanism: the source of sampling, noise and expected batch size.
        optimizer: any torch optimizer over the clipper's parameters, or over those that a
            reparametrisation moves.
        settings: learning-rate schedule, and microbatch size.
        key: decides batches, noise and dropout; secret unless the run is for research.
        start: first step to run.
        reparametrisation: where the clipper's parameters are others than those that the optimizer
            moves.
        audit: canaries in slots behind the last unit, which are sampled as units are.
        cohort: the processes that train together, which the clipper was made with; None: this one.
        pipeline: what forms sums where ranks hold stages of the model; None: the clipper does.
        spend: called with each step and what it released, before the weights move: the ledger.
        after_step: called with each step when it is done: metrics, progress, checkpoints.
        moving: entered where a step's release begins, left behind ``after_step``: what it must not
            be interrupted in.
        watched: whether a step's statistics hold signal and noise; in one process alone.

    Raises:
        RankError: if another process of the cohort failed, or has drawn another batch.
        TrainingError: without privacy, if the gradient is not finite; with it, a DivergedError if
            the weights are not. They are released, so that to stop for their sake gives nothing
            away.
    """
    slots = len(data) + (len(audit) if audit is not None else 0)
    if slots != mechanism.dataset_size:
        raise TrainingError(
            f"{slots} units for a mechanism over {mechanism.dataset_size}; expected "
            "the same number, since the sampling rate rests on it"
        )
    device = next(model.parameters()).device
    sampler = mechanism.sampler(key)
    noise = mechanism.noise(key, clipper)
    # TF32 rounds to 11 bits, in ways that depend on the batch's shape: records would be coupled.
    exact = full_precision if clipper.private else nullcontext
    cohort = cohort or SingleProcess()
    # Masks fall to rows: each rank has its own.
    rank = (cohort.rank,) if cohort.size > 1 else ()
    # What ranks must do together they must agree on; copies of a model are by themselves.
    agreed = cohort.any if cohort.divided else None

    cut = partial(data.microbatches, token_budget=settings.token_budget)

    def summed(step: int, pieces: Pieces) -> StepStatistics:
        """The sum of the clipped gradients; nothing is released yet, so it may be formed anew."""
        # Dropout masks fall to rows, and one more record shifts the rows. Masks that an observer
        # knew would break the sensitivity; secret ones can be thought of as each record's own.
        torch.manual_seed(keys.seed(key, "dropout", step, *rank))
        statistics = StepStatistics()
        if pipeline is not None:
            statistics = StepStatistics(share=pipeline.pipeline, groups=pipeline.groups)
            with exact():
                found = pipeline.add(data.losses, (data.batch(micro, step) for micro in pieces))
            for one, losses in zip(found, pipeline.losses(found), strict=True):
                _observe(statistics, losses, one.norms, one.factors, len(losses))
            return statistics
        for micro in pieces:
            batch = data.batch(micro, step).to(device)
            records = len(micro) - micro.count(BLANK)
            add_clipped(data, model, clipper, batch, records, statistics, agreed)
        return statistics

    def attempted(step: int, pieces: Pieces) -> StepStatistics:
        try:
            return summed(step, pieces)
        except LostRecordError:
            pass
        forget(clipper)
        return summed(step, pieces)  # now the clipper is careful

    for step in range(start, mechanism.steps):
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * lr_factor(settings, step, mechanism.steps)
        optimizer.zero_grad()
        if reparametrisation is not None:
            reparametrisation.begin(step)
        drawn = sampler.batch(step)
        real = [index for index in drawn if index < len(data)]
        with together(cohort, f"step {step}: {drawn}"):
            statistics = attempted(step, cohort.pieces(real, cut))
        with moving():
            if audit is not None:
                audit.insert([index - len(data) for index in drawn if index >= len(data)])
            asked = cohort.size == 1 and watched(step)
            if asked:
                statistics.signal = _norm_of_mean(clipper, mechanism.batch_size)
            statistics.released = noise.privatise_(step)
            if asked:
                statistics.noise = _norm_of_noise(clipper, noise.deviations)
            if audit is not None:
                audit.observe()
            if not mechanism.noise_multiplier:
                _check_finite(clipper, step, agreed)
            spend(step, statistics.released)
            if reparametrisation is not None:
                reparametrisation.transfer()
            optimizer.step()
            if mechanism.noise_multiplier:
                _check_weights(optimizer, step, agreed)
            statistics.seconds = time.perf_counter() - began
            after_step(step, statistics)


def _norm_of_mean(clipper: Clipper, batch_size: int) -> float:
    """Of all parameters' sums together, over the expected batch size."""
    sums = [p.grad for p in clipper.parameters.values() if p.grad is not None]
    norms = [float(torch.linalg.vector_norm(one, dtype=torch.float64)) for one in sums]
    return math.hypot(*norms) / batch_size


def _norm_of_noise(clipper: Clipper, deviations: Mapping[str, float]) -> float:
    """``sqrt(sum of squared deviations)`` over the coordinates of all parameters."""
    squares = (p.numel() * deviations[name] ** 2 for name, p in clipper.parameters.items())
    return math.sqrt(math.fsum(squares))


def add_clipped(
    data: Units,
    model: nn.Module,
    clipper: Clipper,
    batch: UnitBatch,
    records: int,
    statistics: StepStatistics,
    agreed: Callable[[bool], bool] | None = None,
) -> None:
    """Add the clipped gradients of one microbatch to ``.grad``.

    Args:
        data: gives the losses.
        model: whose gradients they are.
        clipper: attached to the model.
        batch: on the model's device.
        records: units of it that are no blanks.
        statistics: is told of the microbatch.
        agreed: whether something is so on any rank that runs the model together; None: no others.

    Raises:
        LostRecordError: see `Clipper.backward`; form the whole logical batch's sum anew.
    """
    with full_precision() if clipper.private else nullcontext():
        _check_rules(data, model, clipper, batch, agreed)
        if clipper.private and not clipper.careful:
            losses = data.losses(model, batch)  # the clipper drops who is not finite
        else:
            losses, batch = finite_losses(data, model, batch, agreed)
        clipper.backward(losses, rows=batch.rows_per_unit, real=batch.real)
    _observe(statistics, batch.of_units(losses), clipper.norms, clipper.factors, records)


def _check_rules(
    data: Units,
    model: nn.Module,
    clipper: Clipper,
    batch: UnitBatch,
    agreed: Callable[[bool], bool] | None,
) -> None:
    """Check the layers' rules on some units of a batch, where the clipper asks for it.

    In a forward of their own, before that of the batch, for which nothing random is used up.
    """
    index = clipper.to_check(len(batch), batch.real)
    if index is None:
        return
    with random_state_kept(*model.parameters()):
        losses, some = finite_losses(data, model, batch.units(index), agreed)
        if len(losses):
            clipper.check(losses, rows=some.rows_per_unit, real=some.real)
        else:  # the batch itself is checked
            clipper.take()


def _observe(
    statistics: StepStatistics, losses: Tensor, norms: Tensor, factors: Tensor, records: int
) -> None:
    statistics.records += records
    statistics.microbatches += 1
    statistics.losses.append(losses.detach())
    statistics.left_out += records - len(losses)
    if norms.shape[1]:  # there are clipping groups
        statistics.norms.append(norms)
        statistics.factors.append(factors)


def forget(clipper: Clipper) -> None:
    """Undo a sum that broke off."""
    clipper.reset()
    for parameter in clipper.parameters.values():
        parameter.grad = None


def _check_weights(
    optimizer: torch.optim.Optimizer, step: int, agreed: Callable[[bool], bool] | None
) -> None:
    moved = [own_part(p) for group in optimizer.param_groups for p in group["params"]]
    moved = [part for part in moved if not part.is_meta]  # the others' stages, which they look at
    # One answer for all: each by itself would make a GPU wait for each.
    finite = bool(torch.stack([torch.isfinite(part).all() for part in moved]).all())
    if (agreed or bool)(not finite):
        raise DivergedError(
            f"the weights are not finite after step {step}; expected finite numbers. Type a "
            "smaller optim.lr, which is another run; what this one spent stays in its ledger"
        )


def _check_finite(clipper: Clipper, step: int, agreed: Callable[[bool], bool] | None) -> None:
    grads = {n: own_part(p.grad) for n, p in clipper.parameters.items() if p.grad is not None}
    # One answer for all: each by itself would make a GPU wait for each.
    finite = [torch.isfinite(grad).all() for grad in grads.values()]
    found = None
    if finite and not bool(torch.stack(finite).all()):
        found = next(name for name, told in zip(grads, finite, strict=True) if not told)
    # Once for all: ranks may hold different parameters.
    if (agreed or bool)(found is not None):
        raise TrainingError(
            f"the gradient of {found or 'a parameter elsewhere'} is not finite at step {step}; "
            "expected finite numbers. Type a smaller optim.lr; the last checkpoint is kept"
        )
