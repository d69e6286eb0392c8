"""The training loop: one noisy step per logical batch, for every clipping style."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from dpft.config.errors import DivergedError, TrainingError
from dpft.config.schema import Optim, lr_factor
from dpft.models.load import Reparametrisation
from dpft.parallel.cohort import Pieces, SingleProcess, TrainingCohort, own_part, together
from dpft.privacy import Clipper, LostRecordError, Mechanism, keys
from dpft.privacy.noise import Released
from dpft.privacy.shapes import BLANK
from dpft.tasks.units import TrainingSet
from dpft.training.executors import Programs, add_clipped, exact, forget
from dpft.training.statistics import StepStatistics

if TYPE_CHECKING:
    from dpft.audit.stage import Auditor
    from dpft.parallel.pipelined_sums import PipelinedSums

Phase = Literal["data", "clipped sums", "waiting", "noise", "ledger", "optimizer", "logs"]
"""A part of a step, which ends with ``logs``; the host waits for the device in ``waiting``."""


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
    programs: Programs | None = None,
    spend: Callable[[int, Released], None] = lambda step, released: None,
    after_step: Callable[[int, StepStatistics], None] = lambda step, statistics: None,
    watched: Callable[[int], bool] = lambda step: False,
    lap: Callable[[Phase], None] = lambda phase: None,
) -> None:
    """Run steps ``start`` to ``mechanism.steps - 1``.

    Everything random in a step follows from ``(key, step)``, so a run that continues from a
    checkpoint repeats what an unbroken one would have done. Where thresholds adapt, the clipper
    must have the checkpoint's estimates.

    Args:
        model: on its device, in training mode; only ``clipper.parameters`` are moved.
        data: the units of privacy, with one loss each.
        clipper: attached to ``model``; its groups and thresholds must be the mechanism's.
        mechanism: the source of sampling, noise and expected batch size.
        optimizer: over the clipper's parameters, or over those of a reparametrisation.
        settings: learning-rate schedule and microbatch size.
        key: decides batches, noise and dropout; secret unless the run is for research.
        start: first step to run.
        reparametrisation: present where the optimizer moves other parameters than the clipper's.
        audit: canaries in slots after the last unit, which are sampled as units are.
        cohort: the processes that train together; None: this one.
        pipeline: forms the sums where ranks hold stages of the model; None: the clipper does.
        programs: add up microbatches, where the step is compiled; None: eager steps do.
        spend: called with each step and what it released, before the weights move: the ledger.
        after_step: called with each finished step: metrics, progress, checkpoints.
        watched: whether a step's statistics include signal and noise; in one process only.
        lap: called at the end of each phase of a step, some of which come several times.

    Raises:
        RankError: another process of the cohort failed, or has drawn another batch.
        TrainingError: without privacy, the gradient is not finite; with it, a DivergedError if the
            weights are not. Those are released, so that stopping for them reveals nothing.
    """
    slots = len(data) + (len(audit) if audit is not None else 0)
    if slots != mechanism.dataset_size:
        raise TrainingError(
            f"{slots} units for a mechanism over {mechanism.dataset_size}; expected "
            "the same number, since the sampling rate rests on it"
        )
    device = next(model.parameters()).device
    # On a CPU torch would note the caller's whole stack for each device that is missing.
    on_cpu = device.type == "cpu"
    seed_of_masks = torch.default_generator.manual_seed if on_cpu else torch.manual_seed
    sampler, noise = mechanism.sampler(key), mechanism.noise(key, clipper)
    cohort = cohort or SingleProcess()
    # Dropout masks belong to rows of a batch, of which each rank has its own.
    rank = (cohort.rank,) if cohort.size > 1 else ()
    # Ranks that run one model together must agree on what they do next.
    agreed = cohort.any if cohort.divided else None
    cut = partial(data.microbatches, token_budget=settings.tokens)

    def clipped_sum(step: int, pieces: Pieces, programs: Programs | None) -> StepStatistics:
        """Add a batch's clipped gradients to ``.grad``. Releases nothing, so it may be repeated."""
        # Masks belong to rows, and one more record shifts the rows. Masks that an observer knew
        # would break the sensitivity; secret ones can be thought of as each record's own.
        seed_of_masks(keys.seed(key, "dropout", step, *rank))
        statistics = StepStatistics()
        if pipeline is not None:
            statistics = StepStatistics(share=pipeline.pipeline, groups=pipeline.groups)
            with exact(clipper):
                found = pipeline.add(data.losses, (data.batch(micro, step) for micro in pieces))
            for one, losses in zip(found, pipeline.losses(found), strict=True):
                statistics.observe(losses, one.norms, one.factors, len(losses))
            return statistics
        with exact(clipper):
            for micro in pieces:
                batch = data.batch(micro, step).to(device)
                lap("data")
                records = len(micro) - micro.count(BLANK)
                if programs is not None:
                    programs.add(batch, records, statistics)
                else:
                    add_clipped(data, model, clipper, batch, records, statistics, agreed)
                lap("clipped sums")
        if programs is not None:
            programs.settle(statistics)
            lap("waiting")
        return statistics

    for step in range(start, mechanism.steps):
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * lr_factor(settings, step, mechanism.steps)
        optimizer.zero_grad()
        if reparametrisation is not None:
            reparametrisation.begin(step)
        drawn = sampler.batch(step)
        units = [index for index in drawn if index < len(data)]
        with together(cohort, f"step {step}: {drawn}"):
            pieces = cohort.pieces(units, cut)
            try:
                statistics = clipped_sum(step, pieces, programs)
                lost = False
            except LostRecordError:
                lost = True
            if lost:  # outside of the clause, whose traceback holds memory
                forget(clipper)
                statistics = clipped_sum(step, pieces, None)  # the clipper is careful from here on
        if audit is not None:
            audit.insert([index - len(data) for index in drawn if index >= len(data)])
        measure = cohort.size == 1 and watched(step)
        if measure:
            statistics.signal = _norm_of_sum(clipper) / mechanism.batch_size
        statistics.released = noise.privatise_(step)
        if measure:
            named = clipper.parameters.items()
            squares = (p.numel() * noise.deviations[name] ** 2 for name, p in named)
            statistics.noise = math.sqrt(math.fsum(squares))
        if audit is not None:
            audit.observe()
        lap("noise")
        if not mechanism.noise_multiplier:
            _check_finite(clipper, step, agreed)
            lap("waiting")
        spend(step, statistics.released)
        lap("ledger")
        if reparametrisation is not None:
            reparametrisation.transfer()
        optimizer.step()
        lap("optimizer")
        if mechanism.noise_multiplier:
            check_weights(optimizer, step, agreed)
            lap("waiting")
        statistics.seconds = time.perf_counter() - began
        after_step(step, statistics)
        lap("logs")


def _norm_of_sum(clipper: Clipper) -> float:
    sums = [p.grad for p in clipper.parameters.values() if p.grad is not None]
    return math.hypot(*(float(torch.linalg.vector_norm(x, dtype=torch.float64)) for x in sums))


@torch.no_grad()
def check_weights(
    optimizer: torch.optim.Optimizer, step: int, agreed: Callable[[bool], bool] | None = None
) -> None:
    """Raise DivergedError for weights that are not finite: those are released anyway."""
    moved = [own_part(p) for group in optimizer.param_groups for p in group["params"]]
    # Not stages that other ranks check, nor empty parts.
    moved = [part for part in moved if part.numel() and not part.is_meta]
    # One transfer for all, since the host waits for each; the largest number shows any other.
    finite = not moved or torch.stack(torch._foreach_norm(moved, math.inf)).isfinite().all()
    if (agreed or bool)(not bool(finite)):
        raise DivergedError(
            f"the weights are not finite after step {step}; expected finite numbers. Type a "
            "smaller learning rate, which is another run; what this one spent stays in its ledger"
        )


def _check_finite(clipper: Clipper, step: int, agreed: Callable[[bool], bool] | None) -> None:
    grads = {n: own_part(p.grad) for n, p in clipper.parameters.items() if p.grad is not None}
    finite = [torch.isfinite(grad).all() for grad in grads.values()]
    found = None
    if finite and not bool(torch.stack(finite).all()):
        found = next(name for name, is_finite in zip(grads, finite, strict=True) if not is_finite)
    if (agreed or bool)(found is not None):  # once for all, since ranks may hold other parameters
        raise TrainingError(
            f"the gradient of {found or 'a parameter elsewhere'} is not finite at step {step}; "
            "expected finite numbers. Type a smaller optim.lr; the last checkpoint is kept"
        )
