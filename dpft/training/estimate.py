"""Seconds and money of a run, from what one simulated rank computes and sends.

Every operation takes as long as its products at the device's rate, as long as its bytes at the
bandwidth of its memory, or as long as the shortest operation, whichever is longest; a CPU needs the
last beside the others. One follows the other, and nothing is sent while something is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dpft.config.errors import ConfigError
from dpft.config.schema import Run
from dpft.parallel.operations import Operation
from dpft.parallel.pipelined_sums import SCHEDULES
from dpft.parallel.simulate import Cost
from dpft.parallel.simulated_layouts import OPTIMIZER, REDUCTION
from dpft.privacy.accounting import steps_for
from dpft.privacy.spec import fitting_batch
from dpft.training.devices import Device
from dpft.training.mechanisms import expected_batch_size, known_size
from dpft.training.planned_step import StepShape

NOISE_BYTES = 8
"""Of one number of noise: it is drawn and added in float64."""

# Instructions for one number of noise of `dpft.privacy.fused`, compiled for sm_90 and disassembled:
# a sixteenth of those of a lane, the loop of ChaCha20 ten times.
_FLOAT64, _INTEGER = 37, 164
_MOVED = 8  # bytes: the sum, in and out


@dataclass(frozen=True)
class Estimate:
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


@dataclass(frozen=True)
class Length:
    """How long a run is.

    Attributes:
        steps: of the run.
        records: that a step draws on average.
    """

    steps: int
    records: int


def length_of(run: Run) -> Length | None:
    """Steps of a run and records of each; None where that rests on data of unknown size.

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
    if run.optim.steps is not None:
        return Length(run.optim.steps, records)
    return Length(
        steps_for(dataset_size=size, batch_size=records, epochs=run.optim.epochs), records
    )


def microbatches_of(shape: StepShape, records: int) -> int:
    """Microbatches of each rank in a step of so many records, in whole rounds of a pipeline."""
    parallel = shape.parallel
    copies = shape.ranks
    if parallel.name == "pipeline":
        copies //= parallel.length or shape.ranks
    needed = math.ceil(math.ceil(records / copies) / shape.batch)
    if parallel.name == "pipeline":
        return shape.microbatches * math.ceil(needed / shape.microbatches)
    return max(1, needed)


def estimate(
    cost: Cost, shape: StepShape, device: Device, microbatches: int | None = None
) -> Estimate:
    """What a step takes on a device.

    Args:
        cost: of one rank, simulated in that shape.
        shape: of the simulated step.
        device: that each rank has.
        microbatches: of a rank in a step; None: as simulated.
    """
    inside = {name: seconds(work, device) for name, work in cost.work.items()}
    once = sum(inside.pop(name, 0.0) for name in (REDUCTION, OPTIMIZER))
    count = microbatches or shape.microbatches
    # What is sent once a step is counted with what is sent for each microbatch.
    rounds = count / shape.microbatches if shape.parallel.name != "data" else 1
    speed = device.link if shape.ranks <= device.per_node else device.network
    return Estimate(
        microbatch=sum(inside.values()) / shape.microbatches,
        noise=_noise(cost.noise, device),
        optimizer=once,
        sending=sum(cost.sent.values()) * rounds / speed,
        microbatches=count,
        idle=_idle(shape),
    )


def seconds(work: Mapping[Operation, int], device: Device) -> float:
    """How long operations take, one after the other."""
    return sum(times * _seconds(operation, device) for operation, times in work.items())


def _seconds(operation: Operation, device: Device) -> float:
    products = 0.0
    if operation.precision:
        products = operation.flops / device.rate(operation.precision)
    longest = max(products, operation.moved / device.bandwidth)
    return longest + device.overhead if device.serial else max(longest, device.overhead)


def _noise(numbers: int, device: Device) -> float:
    if device.normals is not None:
        return numbers / device.normals
    # Rates count a multiplication and an addition as two operations. Of integers, half as many are
    # computed as of float32 ("NVIDIA H100 Tensor Core GPU Architecture", 2022: 64 beside 128 in a
    # clock of a multiprocessor). All are counted one after the other.
    each = (
        _FLOAT64 / (device.rate("float64") / 2)
        + _INTEGER / (device.rate("float32") / 4)
        + _MOVED / device.bandwidth
    )
    return numbers * each


def _idle(shape: StepShape) -> float:
    """Of a pipeline: how much of its work a stage waits, at the beginning and the end of a round.

    ``(p - 1) / (v m)`` of ``m`` microbatches on ``p`` ranks with ``v`` stages each (Narayanan et
    al. 2021, section 2.2); nothing where sums fill the gaps (Qi et al. 2024).
    """
    if shape.parallel.name != "pipeline":
        return 0.0
    name = shape.parallel.schedule or "1f1b"
    if name in ("zero_bubble", "zbv"):
        return 0.0
    ranks = shape.parallel.length or shape.ranks
    return (ranks - 1) / (SCHEDULES[name].each * shape.microbatches)
