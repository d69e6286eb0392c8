"""Simulate one rank's training step without data: its memory, its arithmetic and what it sends.

The real model, clipper, sharding, pipeline and optimizer run on fake tensors, which have shapes and
no numbers, and in a process group of which one rank exists and which sends nothing. Three modes
look at every operation of torch: `PretendedAnswers` stands in for the numbers that a step asks for,
`Meter` counts storages and collectives, `Operations` counts what is computed. They count real
tensors and real ranks as well, which is how the simulation is tested.

Not counted: an allocator's rounding and fragmentation, what kernels and NCCL allocate themselves,
the CUDA context, and on a GPU what waits to be freed on another stream.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dpft.config.errors import ConfigError
from dpft.config.parallel import Parallel
from dpft.parallel.cohort import Pipelines, Replicas, own_part
from dpft.parallel.metering import Meter, Operation, Operations
from dpft.parallel.pipelined_sums import pipelined, stages
from dpft.parallel.pretended import Alike, PretendedAnswers, fake_ranks, give_storages
from dpft.parallel.sharded import Shards, shard
from dpft.privacy.clipping.checks.schedule import Schedule
from dpft.privacy.clipping.clipper import Clipper
from dpft.privacy.cohort import Cohort
from dpft.privacy.precision import as_on_gpu
from dpft.privacy.spec import Partition

FORWARD, BACKWARD, REDUCTION, OPTIMIZER = "forward", "backward", "reduction", "optimizer"
SCHEDULE = "forward and backward"
"""In a pipeline they are interleaved."""

World = DeviceMesh | Pipelines | None
Phase = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Cost:
    """What one rank holds, computes and sends.

    Attributes:
        parameters: of the whole model.
        trained: of these.
        noise: normal numbers that this rank draws in a step.
        held: bytes between steps: weights and the optimizer's state.
        peaks: the most bytes in each phase of a step.
        checked: the most in the check and the backward of a step whose layer rules are checked
            against autograd; None where none is.
        sent: bytes that the rank sends in a step by kind of collective, see `metering.sent`.
        work: what is computed in each phase: how often each operation is.
    """

    parameters: int
    trained: int
    noise: int
    held: int
    peaks: Mapping[str, int]
    checked: int | None
    sent: Mapping[str, int]
    work: Mapping[str, Mapping[Operation, int]] = field(repr=False)

    @property
    def peak(self) -> int:
        """The most bytes at any time."""
        return max(self.checked or 0, *self.peaks.values())


@dataclass(frozen=True)
class Training:
    """What is trained, and how.

    Attributes:
        build: makes the model, in training mode.
        batch: makes a microbatch; for pipelines, one of units.
        losses: runs the model on one: per-example losses ``(B,)``.
        clip: attaches the clipper, given the model and the ranks that train it; None: this one.
        optimizer: of the clipper's parameters.
        parallel: the layout.
        ranks: how many train together.
        rank: which of them is simulated. Where all hold the same share, the first has the most.
        microbatches: of each rank in a step; of a pipeline, of each of its ranks.
        few: some records of a microbatch, on which rules are checked ahead of it; None: they are
            checked on the whole.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[], Any]
    losses: Callable[[nn.Module, Any], Tensor]
    clip: Callable[[nn.Module, Cohort | None], Clipper]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    parallel: Parallel = field(default_factory=Parallel)
    ranks: int = 1
    rank: int = 0
    microbatches: int = 1
    few: Callable[[Any], Any] | None = None


def simulated(
    training: Training, on_gpu: bool = True, check: bool = True, counts: bool = True
) -> Cost:
    """Simulate a step of one of ``training.ranks`` ranks on fake tensors.

    Args:
        training: what is run.
        on_gpu: whether products of bfloat16 stay such, and optimizers work on all parameters at
            once, as PyTorch's do by default on a GPU: faster, for memory.
        check: see `steps`.
        counts: see `steps`.

    Raises:
        ConfigError: for a number of ranks that the layout cannot have.
        RuntimeError: if this process belongs to a process group already.
    """
    with ExitStack() as stack:
        stack.enter_context(fake_ranks(training.ranks, training.rank))
        # Before tensors are fake.
        ranks = world(training)
        with torch.device("meta"):
            model = training.build()
        fake = stack.enter_context(FakeTensorMode())
        stack.enter_context(PretendedAnswers())
        meter = stack.enter_context(Meter(fake))
        give_storages(model)
        if on_gpu:
            stack.enter_context(as_on_gpu())
        return steps(training, meter, model, ranks, on_gpu, check, counts)


def steps(
    training: Training,
    meter: Meter,
    model: nn.Module,
    world: World = None,
    stacked: bool = False,
    check: bool = True,
    counts: bool = True,
) -> Cost:
    """Run a step, and one that is checked, under the meter; on fake tensors or on real ones.

    The optimizer has its state before the first: a rank holds it in every other step.

    Args:
        training: what is run.
        meter: entered already.
        model: which was built as the training says, under the meter.
        world: of the ranks; None: there is one.
        stacked: whether the optimizer works on all parameters at once.
        check: whether to run the step that is checked; it takes longer than the other.
        counts: whether operations are counted; for memory alone no formula of one is needed.
    """
    every = [(p.numel(), p.requires_grad) for p in model.parameters()]
    parameters, trained = (sum(n for n, moves in every if moves or kept) for kept in (True, False))
    own = _part(training, model, world)
    del model
    clipper, schedule = own.clipper, _Asked()
    for each in own.clippers:
        each.checker.schedule = schedule
    optimizer = training.optimizer(clipper.parameters.values())
    for group in optimizer.param_groups:
        if stacked and "foreach" in group:
            group["foreach"] = True
    for parameter in clipper.parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    peaks: Counter[str] = Counter()
    work: dict[str, Counter[Operation]] = {}

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        meter.peak = meter.now
        operations = Operations()
        with operations if counts else nullcontext():
            yield
        peaks[name] = max(peaks[name], meter.peak)
        work.setdefault(name, Counter()).update(operations.counted)

    def step() -> None:
        own.sums(phase, schedule.check)
        with phase(REDUCTION):
            clipper.collect()
        with phase(OPTIMIZER):
            optimizer.step()
        optimizer.zero_grad()

    meter.sent.clear()
    step()
    usual, computed = dict(peaks), {name: dict(counted) for name, counted in work.items()}
    sent, held, checked = dict(meter.sent), meter.now, None
    if clipper.private and check:
        peaks.clear()
        schedule.check = True
        step()
        checked = max(peaks[BACKWARD], peaks[SCHEDULE])
    drawn = sum(own_part(p).numel() for p in clipper.parameters.values()) * clipper.private
    clipper.close()
    return Cost(parameters, trained, drawn, held, usual, checked, sent, computed)


class _Asked(Schedule):
    """A schedule whose caller decides whether a batch is checked."""

    check = False

    def due(self, *batch: Any) -> bool:
        return self.check

    def checked(self, all_conclusive: bool, all_finite: bool) -> None:
        pass


def world(training: Training) -> World:
    """Return how the ranks of the process group are laid out; None where there is one process.

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


def _part(training: Training, model: nn.Module, world: World) -> _Whole | _Stages:
    """Return this rank's part of a model; what other ranks hold of it is freed."""
    if isinstance(world, Pipelines):
        own = _Stages(training, model, world)
        gc.collect()  # the clipper of the whole model is part of a reference cycle
        return own
    return _Whole(training, model, world)


class _Whole:
    """A copy of the model, or shards of all its parameters.

    Attributes:
        clipper: has the parameters that the rank trains, and adds up their sums.
        clippers: those within it, each with a schedule of checks.
    """

    def __init__(self, training: Training, model: nn.Module, mesh: DeviceMesh | None) -> None:
        cohort: Replicas | None = None
        if mesh is not None and training.parallel.name == "fsdp":
            shard(model, mesh)
            cohort = _AlikeShards(mesh)
        elif mesh is not None:
            cohort = Alike()
        self._training, self._model = training, model
        self.clipper = training.clip(model, cohort)
        self.clippers: Sequence[Clipper] = [self.clipper]

    def sums(self, phase: Phase, check: bool) -> None:
        """Form the sums of this rank's microbatches, every piece of work within its phase."""
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
    """Some blocks of the model, and the microbatches of a schedule; attributes as `_Whole`."""

    def __init__(self, training: Training, model: nn.Module, ranks: Pipelines) -> None:
        how = Partition("per_device", stages(ranks.schedule, ranks.length))
        whole: Any = training.clip(model, ranks)
        parts, self._sums = pipelined(model, whole, how, ranks)
        self._training = training
        self.clipper: Any = parts
        self.clippers: Sequence[Clipper] = list(parts.clippers.values())

    def sums(self, phase: Phase, check: bool) -> None:
        """Form the sums of this rank's microbatches; the clippers' schedules say what to check."""
        training = self._training
        with phase(SCHEDULE):
            batches = [training.batch() for _ in range(training.microbatches)]
            observed = self._sums.add(training.losses, batches)
            self._sums.losses(observed)


class _AlikeShards(Alike, Shards):
    pass


class _AlikePipelines(Alike, Pipelines):
    pass
