"""Plan a run: memory and time of its step on a device, and the largest microbatch that fits.

One step is simulated without weights or data (`dpft.parallel.simulate`). Every operation of it
takes as long as its products at the device's rate, as its bytes at the bandwidth of its memory, or
as the shortest operation, whichever is longest. Operations follow one another, and nothing is sent
while something is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dpft.config.errors import ConfigError
from dpft.config.schema import Run
from dpft.parallel.metering import Operation
from dpft.parallel.pipelined_sums import SCHEDULES
from dpft.parallel.simulate import OPTIMIZER, REDUCTION, Cost, simulated
from dpft.privacy.accounting import steps_for
from dpft.privacy.spec import fitting_batch
from dpft.training.devices import Device
from dpft.training.mechanisms import expected_batch_size, known_size
from dpft.training.planned_step import StepShape, training_of

SHARE = 0.9
"""Of a device's memory: the rest is for what is not counted, such as fragmentation."""

_MOST = 1024  # records of a step where that is unknown

# Instructions for one number of noise of `dpft.privacy.fused`, compiled for sm_90 and disassembled:
# a sixteenth of those of a lane, the loop of ChaCha20 ten times.
_FLOAT64, _INTEGER = 37, 164
_MOVED = 8  # bytes: the sum, in and out


@dataclass(frozen=True)
class Length:
    """How long a run is.

    Attributes:
        steps: of the run.
        records: that a step draws on average.
    """

    steps: int
    records: int


@dataclass(frozen=True)
class StepTime:
    """What one step takes.

    Attributes:
        microbatch: seconds of one microbatch's forward and backward.
        noise: seconds in which noise is drawn.
        optimizer: seconds, once a step; sums of several ranks are put together in it.
        sending: seconds, if nothing is computed meanwhile.
        microbatches: of a rank in a step.
        idle: share of the step's microbatches for whose time a stage of a pipeline waits.
    """

    microbatch: float
    noise: float
    optimizer: float
    sending: float
    microbatches: int
    idle: float = 0.0

    @property
    def seconds(self) -> float:
        """Of a step."""
        computed = self.microbatch * self.microbatches * (1 + self.idle)
        return computed + self.noise + self.optimizer + self.sending


def plan(
    run: Run, shape: StepShape, device: Device, check: bool = True
) -> tuple[Cost, StepTime, Length | None]:
    """Simulate a step of a run.

    Args:
        run: its settings.
        shape: of the step; the run's own steps have as many such microbatches as they need.
        device: that each rank has.
        check: whether memory of checked batches is wanted too.

    Returns:
        What a rank holds and sends, its time, and the run's length, None where the size of the
        run's data is unknown.

    Raises:
        ConfigError: for what cannot be simulated, or a precision that the device lacks.
    """
    length = length_of(run)
    count = None if length is None else microbatches_of(shape, length.records)
    cost = simulated(training_of(run, shape), check=check)
    return cost, time_of(cost, shape, device, count), length


def length_of(run: Run) -> Length | None:
    """Return the steps of a run and the records of each; None for data of unknown size.

    Raises:
        ConfigError: for batches of more records than there are.
    """
    size = known_size(run)
    if size is None:
        return None
    records = expected_batch_size(run.optim, size)
    if records > size:
        raise ConfigError(
            f"optim.batch_size is {records} for {size} training records; expected at most {size}: "
            f"type optim.batch_size={fitting_batch(size)}"
        )
    steps = run.optim.steps
    if steps is None:
        steps = steps_for(dataset_size=size, batch_size=records, epochs=run.optim.epochs)
    return Length(steps, records)


def microbatches_of(shape: StepShape, records: int) -> int:
    """Return each rank's microbatches in a step of so many records, whole rounds in a pipeline."""
    parallel = shape.parallel
    copies = shape.ranks
    if parallel.name == "pipeline":
        copies //= parallel.length or shape.ranks
    needed = math.ceil(math.ceil(records / copies) / shape.batch)
    if parallel.name == "pipeline":
        return shape.microbatches * math.ceil(needed / shape.microbatches)
    return max(1, needed)


def time_of(
    cost: Cost, shape: StepShape, device: Device, microbatches: int | None = None
) -> StepTime:
    """Estimate what a step takes on a device.

    Args:
        cost: of one rank, simulated in that shape.
        shape: of the simulated step.
        device: that each rank has.
        microbatches: of a rank in a step; None: as simulated.

    Raises:
        ConfigError: for a precision that the device's data sheet lacks.
    """
    inside = {name: _seconds(work, device) for name, work in cost.work.items()}
    once = sum(inside.pop(name, 0.0) for name in (REDUCTION, OPTIMIZER))
    count = microbatches or shape.microbatches
    # What is sent once a step is counted with what is sent for each microbatch.
    rounds = count / shape.microbatches if shape.parallel.name != "data" else 1
    speed = device.link if shape.ranks <= device.per_node else device.network
    # Rates count a multiplication and an addition as two operations. Of integers, half as many are
    # computed as of float32 ("NVIDIA H100 Tensor Core GPU Architecture", 2022: 64 beside 128 in a
    # clock of a multiprocessor). All are counted one after the other.
    number = (
        _FLOAT64 / (device.rate("float64") / 2)
        + _INTEGER / (device.rate("float32") / 4)
        + _MOVED / device.bandwidth
    )
    return StepTime(
        microbatch=sum(inside.values()) / shape.microbatches,
        noise=cost.noise * number,
        optimizer=once,
        sending=sum(cost.sent.values()) * rounds / speed,
        microbatches=count,
        idle=_idle(shape),
    )


def _seconds(work: Mapping[Operation, int], device: Device) -> float:
    """Return how long operations take, one after the other."""
    total = 0.0
    for operation, times in work.items():
        rate = device.rate(operation.precision) if operation.precision else math.inf
        longest = max(operation.flops / rate, operation.moved / device.bandwidth, device.overhead)
        total += times * longest
    return total


def _idle(shape: StepShape) -> float:
    """Return how much of its work a pipeline's stage waits, at both ends of a round.

    ``(p - 1) / (v m)`` of ``m`` microbatches on ``p`` ranks with ``v`` stages each (Narayanan et
    al. 2021, section 2.2); nothing where sums fill the gaps (Qi et al. 2024).
    """
    name = shape.parallel.schedule or "1f1b"
    if shape.parallel.name != "pipeline" or name in ("zero_bubble", "zbv"):
        return 0.0
    ranks = shape.parallel.length or shape.ranks
    return (ranks - 1) / (SCHEDULES[name].each * shape.microbatches)


def peak_of(run: Run, shape: StepShape, on_gpu: bool = True) -> Callable[[int], int]:
    """Return the most bytes of a step, checked ones too, by records of its microbatch."""

    def peak(batch: int) -> int:
        training = training_of(run, replace(shape, batch=batch))
        return simulated(training, on_gpu, counts=False).peak

    return peak


def largest_of(run: Run, shape: StepShape, memory: float) -> int:
    """Return the records of the largest microbatch that fits a GPU, by simulation; see `largest`.

    Args:
        run: its settings.
        shape: of the step, but for its batch.
        memory: bytes of the device, of which a tenth stays free.
    """
    return largest(peak_of(run, shape), SHARE * memory, most_of(run))


def most_of(run: Run) -> int:
    """Return how many records a microbatch can have: those of a step."""
    length = length_of(run)
    return _MOST if length is None else length.records


def largest(peak: Callable[[int], float], room: float, most: int) -> int:
    """Find the largest microbatch that fits with few questions: its memory grows about evenly.

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
