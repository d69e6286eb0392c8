"""The training loop: differentially private SGD (Abadi et al. 2016, Algorithm 1)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from dpft.config.errors import TrainingError
from dpft.config.schema import Optim, lr_factor
from dpft.models.load import Reparametrisation
from dpft.parallel.cohort import Pieces, TrainingCohort, together
from dpft.privacy import Clipper, LostRecordError, Mechanism, keys
from dpft.privacy.noise import Released
from dpft.privacy.sampling import BLANK
from dpft.tasks.units import TrainingSet
from dpft.training.executors import Programs, add_clipped, exact, forget
from dpft.training.statistics import StepStatistics, check_gradients, check_weights

if TYPE_CHECKING:
    from dpft.audit.canaries import Canaries
    from dpft.parallel.pipeline import PipelinedSums

# Parts of a step, which ends with "logs"; the host waits for the device in "waiting".
Phase = Literal["data", "clipped sums", "waiting", "noise", "ledger", "optimizer", "logs"]


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
    audit: Canaries | None = None,
    cohort: TrainingCohort | None = None,
    pipeline: PipelinedSums | None = None,
    programs: Programs | None = None,
    spend: Callable[[int, Released], None] = lambda step, released: None,
    after_step: Callable[[int, StepStatistics], None] = lambda step, statistics: None,
    watched: Callable[[int], bool] = lambda step: False,
    lap: Callable[[Phase], None] = lambda phase: None,
) -> None:
    """Run steps ``start`` to ``mechanism.steps - 1``.

    Everything random in a step follows from ``(key, step)``, so a continued run repeats its steps.

    Args:
        model: in training mode; only ``clipper.parameters`` are moved.
        data: the units of privacy, with one loss each.
        clipper: attached to ``model``, with the groups and thresholds of the mechanism.
        mechanism: the source of sampling, noise and expected batch size.
        optimizer: over the clipper's parameters, or over those of ``reparametrisation``.
        settings: learning-rate schedule and microbatch size.
        key: decides batches, noise and dropout; secret in a private run.
        start: first step to run.
        reparametrisation: None where the optimizer moves the clipper's parameters themselves.
        audit: canaries in slots after the last unit, which are sampled as units are.
        cohort: the processes that train together; None: this one.
        pipeline: forms the sums where ranks hold stages of the model.
        programs: form the sums where the step is compiled.
        spend: writes a step and its release to the ledger, before the weights move.
        after_step: called with each finished step.
        watched: returns whether a step's statistics include the norms of signal and noise.
        lap: called at the end of each phase of a step, several times where a phase repeats.

    Raises:
        RankError: another process of the cohort failed, or has drawn another batch.
        TrainingError: the gradient (without privacy) or the released weights are not finite.
    """
    if (slots := len(data) + len(audit or ())) != mechanism.dataset_size:
        raise TrainingError(f"got {slots} units; expected {mechanism.dataset_size}, as accounted")
    device = next(model.parameters()).device
    # On a CPU torch.manual_seed would record the caller's stack for each device that is missing.
    cpu_seed = torch.default_generator.manual_seed
    seed_masks = cpu_seed if device.type == "cpu" else torch.manual_seed
    sampler, noise = mechanism.sampler(key), mechanism.noise(key, clipper)
    cohort = cohort or TrainingCohort()
    agreed = cohort.any if cohort.divided else None  # ranks that share a model stop together

    def clipped_sum(step: int, pieces: Pieces, programs: Programs | None) -> StepStatistics:
        """Add a batch's clipped gradients to ``.grad``. Releases nothing, so it may be repeated."""
        # Masks belong to rows, and one more record shifts the rows: masks that an observer knew
        # would break the sensitivity. Each rank has its rows.
        seed_masks(keys.seed(key, "dropout", step, *([cohort.rank] if cohort.size > 1 else [])))
        with exact(clipper):
            if pipeline is not None:
                statistics = StepStatistics(share=0, groups=pipeline.clipper.own_groups)
                found = pipeline.add(data.losses, (data.batch(micro, step) for micro in pieces))
                for one, losses in zip(found, pipeline.losses(found), strict=True):
                    statistics.observe(losses, one.norms, one.factors, len(losses))
                return statistics
            statistics = StepStatistics()
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
        with together(cohort, f"step {step}: {drawn}"):
            units = [index for index in drawn if index < len(data)]
            pieces = cohort.pieces(units, partial(data.microbatches, token_budget=settings.tokens))
            try:
                statistics, lost = clipped_sum(step, pieces, programs), False
            except LostRecordError:
                lost = True
            if lost:  # outside of the clause, whose traceback holds memory
                forget(clipper)
                statistics = clipped_sum(step, pieces, None)  # the clipper is careful now
        if audit is not None:
            audit.insert([index - len(data) for index in drawn if index >= len(data)])
        if measured := cohort.size == 1 and watched(step):
            statistics.measure_signal(clipper, mechanism.batch_size)
        statistics.released = noise.privatise_(step)
        if measured:
            statistics.measure_noise(clipper, noise)
        if audit is not None:
            audit.observe()
        lap("noise")
        if not mechanism.noise_multiplier:
            check_gradients(clipper, step, agreed)
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
