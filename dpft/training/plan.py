"""What a run would take, before it is paid for: its step, simulated without weights or data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from dpft.config.schema import Run
from dpft.parallel.operations import Operation, outside_halves
from dpft.parallel.simulate import Cost, simulated
from dpft.training.devices import Device
from dpft.training.estimate import Estimate, Length, estimate, length_of, microbatches_of
from dpft.training.planned_step import StepShape, training_of

SHARE = 0.9
"""Of a device's memory: the rest is for what is not counted, such as fragmentation."""

_MOST = 1024  # records of a step where that is unknown


@dataclass(frozen=True)
class StepCost:
    """A step with privacy, or without.

    Attributes:
        cost: what one rank holds, computes and sends.
        time: of a whole step on the device.
        outside: share of products' floating-point operations that are not in half precision.
    """

    cost: Cost
    time: Estimate
    outside: float


@dataclass(frozen=True)
class RankCost:
    """What one rank of a run takes.

    Attributes:
        shape: of the simulated step.
        device: of each rank.
        length: of the run; None where the size of its data is unknown.
        private: as the run clips; None where it does not.
        plain: the same without privacy; None for a pipeline, of which there is none without.
    """

    shape: StepShape
    device: Device
    length: Length | None
    private: StepCost | None
    plain: StepCost | None

    def hours(self, side: StepCost) -> float | None:
        """Of the whole run's steps."""
        return None if self.length is None else self.length.steps * side.time.seconds / 3600

    def plain_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = asdict(self)
        for name, side in (("private", self.private), ("plain", self.plain)):
            if side is not None:
                found[name]["cost"]["work"] = {
                    phase: [[*operation, times] for operation, times in work.items()]
                    for phase, work in side.cost.work.items()
                }
                found[name]["time"]["seconds"] = side.time.seconds
                found[name]["hours"] = self.hours(side)
        return found


def plan(run: Run, shape: StepShape, device: Device, check: bool = True) -> RankCost:
    """Simulate a step of a run, and the same one without privacy.

    Args:
        run: its settings.
        shape: of the step; the run's own steps have as many such microbatches as they need.
        device: that each rank has.
        check: whether memory of checked batches is wanted too.

    Raises:
        ConfigError: for what cannot be simulated, or a precision that the device lacks.
    """
    length = length_of(run)
    count = None if length is None else microbatches_of(shape, length.records)

    def side(private: bool) -> StepCost:
        cost = simulated(training_of(run, shape, private), not device.serial, check)
        return StepCost(cost, estimate(cost, shape, device, count), share_outside(cost))

    staged = shape.parallel.name == "pipeline"
    private = side(True) if run.clip.private else None
    return RankCost(shape, device, length, private, None if staged else side(False))


def share_outside(cost: Cost) -> float:
    """Of all products of a step, the share whose factors are in full precision, by operations."""
    every: Counter[Operation] = Counter()
    for work in cost.work.values():
        every.update(work)
    return outside_halves(every)


def peak_of(run: Run, shape: StepShape, on_gpu: bool = True) -> Callable[[int], int]:
    """Bytes that a step takes at most, checked ones too, by records of its microbatch."""

    def peak(batch: int) -> int:
        training = training_of(run, replace(shape, batch=batch), run.clip.private)
        return simulated(training, on_gpu, counts=False).peak

    return peak


def largest_of(run: Run, shape: StepShape, memory: float) -> int:
    """Records of the largest microbatch that fits a GPU, by simulation; see `largest`.

    Args:
        run: its settings.
        shape: of the step, but for its batch.
        memory: bytes of the device, of which a tenth stays free.
    """
    return largest(peak_of(run, shape), SHARE * memory, most_of(run))


def most_of(run: Run) -> int:
    """Records that a microbatch can have: those of a step."""
    length = length_of(run)
    return _MOST if length is None else length.records


def largest(peak: Callable[[int], float], room: float, most: int) -> int:
    """The largest microbatch that fits, by few questions: what it takes grows about evenly.

    Args:
        peak: bytes by records; larger for more.
        room: bytes.
        most: records to look for.

    Returns:
        From 0 (not even one fits) to ``most``.
    """
    fits, taken = 0, 0.0
    beyond = most + 1
    guess = 1
    while beyond - fits > 1:
        found = peak(guess)
        if found <= room:
            rise = (found - taken) / (guess - fits) if fits else 0.0
            fits, taken = guess, found
            # As far as the last rise leads; at first twice as far.
            more = math.floor((room - taken) / rise) if rise > 0 else fits
            guess = fits + max(1, more)
        else:
            beyond = guess
            guess = (fits + beyond) // 2
        guess = min(max(guess, fits + 1), beyond - 1)
    return fits
