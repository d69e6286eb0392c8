"""One rank's part of a step under each layout, as a simulation runs it, or true ranks beside it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dpft.config.errors import ConfigError
from dpft.parallel.cohort import Replicas
from dpft.parallel.mesh import Pipelines
from dpft.parallel.pipelined_sums import pipelined, stages
from dpft.parallel.pretended import Alike
from dpft.parallel.sharded import Shards, shard
from dpft.privacy.clipping.clipper import Clipper
from dpft.privacy.spec import Partition

if TYPE_CHECKING:
    from dpft.parallel.simulate import Training

FORWARD, BACKWARD, REDUCTION, OPTIMIZER = "forward", "backward", "reduction", "optimizer"
SCHEDULE = "forward and backward"
"""In a pipeline they are interleaved."""

PHASES = (FORWARD, BACKWARD, SCHEDULE, REDUCTION, OPTIMIZER)

World = DeviceMesh | Pipelines | None
Phase = Callable[[str], AbstractContextManager[None]]


class Part(Protocol):
    """What a rank holds and runs.

    Attributes:
        clipper: has the parameters that the rank trains, and adds up their sums.
        clippers: those within it, each with a schedule of checks of its own.
    """

    @property
    def clipper(self) -> Clipper: ...

    @property
    def clippers(self) -> Sequence[Clipper]: ...

    def sums(self, phase: Phase, check: bool) -> None:
        """Form the sums of this rank's microbatches, every piece of work within its phase.

        Args:
            phase: of a name, within which work is counted.
            check: whether rules are checked, ahead of their batch where the training says how.
        """


def world(training: Training) -> World:
    """How the ranks of the process group are laid out; None where there is one process.

    Before tensors are fake: a mesh looks at its numbers.

    Raises:
        ConfigError: for a number of ranks that cannot be laid out like that.
    """
    ranks, parallel = training.ranks, training.parallel
    if ranks == 1:
        if parallel.name == "pipeline":
            raise ConfigError("parallel=pipeline on one rank; expected two or more: type --ranks 2")
        return None
    if parallel.name == "pipeline":
        return _AlikePipelines(parallel.length, parallel.schedule or "1f1b", parallel.microbatches)
    shards = parallel.shards or ranks
    if ranks % shards:
        raise ConfigError(
            f"parallel.shards is {shards} with {ranks} ranks; expected a number that divides them"
        )
    if shards == ranks:
        return init_device_mesh("cpu", (ranks,))
    shape = (ranks // shards, shards)
    return init_device_mesh("cpu", shape, mesh_dim_names=("copy", "shard"))


def part(training: Training, model: nn.Module, world: World) -> Part:
    """This rank's part of a model; what others hold of it is freed."""
    if isinstance(world, Pipelines):
        own = _Stages(training, model, world)
        gc.collect()  # the clipper of the whole model goes in circles
        return own
    return _Whole(training, model, world)


class _Whole:
    """A copy of the model, or shards of all its parameters."""

    def __init__(self, training: Training, model: nn.Module, mesh: DeviceMesh | None) -> None:
        cohort: Replicas | None = None
        if mesh is not None and training.parallel.name == "fsdp":
            shard(model, mesh)
            cohort = _AlikeShards(mesh)
        elif mesh is not None:
            cohort = Alike()
        self._training, self._model = training, model
        self.clipper = training.clip(model, cohort)
        self.clippers = [self.clipper]

    def sums(self, phase: Phase, check: bool) -> None:
        training = self._training
        for _ in range(training.microbatches):
            batch = training.batch()
            if check and training.few is not None:
                with phase(BACKWARD):
                    self.clipper.check(training.losses(self._model, training.few(batch)))
            with phase(FORWARD):
                losses = training.losses(self._model, batch)
            with phase(BACKWARD):
                self.clipper.backward(losses)
                del losses


class _Stages:
    """Some blocks of the model, and the microbatches of a schedule."""

    def __init__(self, training: Training, model: nn.Module, ranks: Pipelines) -> None:
        how = Partition("per_device", stages(ranks.schedule, ranks.length))
        whole: Any = training.clip(model, ranks)
        parts, self._sums = pipelined(model, whole, how, ranks)
        self._training = training
        clippers: Any = parts
        self.clipper, self.clippers = clippers, list(parts.clippers.values())

    def sums(self, phase: Phase, check: bool) -> None:
        training = self._training
        with phase(SCHEDULE):
            batches = [training.batch() for _ in range(training.microbatches)]
            observed = self._sums.add(training.losses, batches)
            self._sums.losses(observed)


class _AlikeShards(Alike, Shards):
    pass


class _AlikePipelines(Alike, Pipelines):
    pass
