"""One rank of many, without data: what a step holds in memory, computes, and sends.

The real model, clipper, sharding, pipeline and optimizer run on fake tensors, which have shapes and
no numbers, and in a process group of which one rank exists and which sends nothing. Three modes
look at every operation of torch: `PretendedAnswers` stands in for the numbers that a step asks for,
`Meter` keeps count of storages and collectives, `Operations` of what is computed. They
count real tensors and real ranks as well, which is how their figures are checked.

What is not counted: an allocator's rounding and fragmentation, what kernels and NCCL take inside,
the CUDA context, and on a GPU what waits to be freed on another stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dpft.config.parallel import Parallel
from dpft.parallel.cohort import own_part
from dpft.parallel.metering import Gauge, Meter
from dpft.parallel.operations import Operation, Operations
from dpft.parallel.pretended import PretendedAnswers, fake_ranks, give_storages
from dpft.parallel.simulated_layouts import BACKWARD, OPTIMIZER, REDUCTION, SCHEDULE, World, part
from dpft.parallel.simulated_layouts import world as world_of
from dpft.privacy.clipping.checks.schedule import Schedule
from dpft.privacy.clipping.clipper import Clipper
from dpft.privacy.cohort import Cohort
from dpft.privacy.precision import as_on_gpu


@dataclass(frozen=True)
class Cost:
    """What one rank holds, computes and sends.

    Attributes:
        parameters: of the whole model.
        trained: of these.
        noise: normal numbers that this rank draws in a step.
        held: bytes between steps: weights and the optimizer's state.
        peaks: the most bytes in each phase of a step, by `dpft.parallel.simulated_layouts.PHASES`.
        checked: the most in the check and the backward of a step whose layer rules are checked
            against autograd; None where none is.
        messages: bytes of the messages of a step by kind of collective.
        calls: collectives of a step, by kind.
        sent: bytes that the rank sends in a step, see `dpft.parallel.metering.sent`.
        work: what is computed in each phase: how often each operation is.
    """

    parameters: int
    trained: int
    noise: int
    held: int
    peaks: Mapping[str, int]
    checked: int | None
    messages: Mapping[str, int]
    calls: Mapping[str, int]
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
        rank: which of them this is. Where all hold as much as another, the first has the most.
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
    """What one of ``training.ranks`` ranks holds, computes and sends.

    Args:
        training: is run on fake tensors.
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
        world = world_of(training)
        with torch.device("meta"):
            model = training.build()
        fake = stack.enter_context(FakeTensorMode())
        stack.enter_context(PretendedAnswers())
        meter = stack.enter_context(Meter(fake))
        give_storages(model)
        if on_gpu:
            stack.enter_context(as_on_gpu())
        adjust = _stacked if on_gpu else _as_it_is
        return steps(training, meter, model, world, adjust, check, counts)


def _as_it_is(optimizer: torch.optim.Optimizer) -> None:
    pass


def _stacked(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        if "foreach" in group:
            group["foreach"] = True


def steps(
    training: Training,
    meter: Gauge,
    model: nn.Module,
    world: World = None,
    adjust: Callable[[torch.optim.Optimizer], None] = _as_it_is,
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
        adjust: called with the optimizer.
        check: whether to run the step that is checked; it takes longer than the other.
        counts: whether operations are counted; for memory alone no formula of one is needed.
    """
    every = [(p.numel(), p.requires_grad) for p in model.parameters()]
    parameters, trained = (sum(n for n, moves in every if moves or kept) for kept in (True, False))
    own = part(training, model, world)
    del model
    clipper, schedule = own.clipper, _Told()
    for each in own.clippers:
        each.checker.schedule = schedule
    optimizer = training.optimizer(clipper.parameters.values())
    adjust(optimizer)
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

    meter.clear()
    step()
    usual, computed = dict(peaks), {name: dict(counted) for name, counted in work.items()}
    messages, calls, sent = (dict(each) for each in (meter.messages, meter.calls, meter.sent))
    held, checked = meter.now, None
    if clipper.private and check:
        peaks.clear()
        schedule.check = True
        step()
        checked = max(peaks[BACKWARD], peaks[SCHEDULE])
    drawn = sum(own_part(p).numel() for p in clipper.parameters.values()) * clipper.private
    clipper.close()
    return Cost(
        parameters, trained, drawn, held, usual, checked, messages, calls, sent, work=computed
    )


class _Told(Schedule):
    """Whether a batch is checked is said, and does not depend on what checks have shown."""

    check = False

    def due(self, *batch: Any) -> bool:
        return self.check

    def checked(self, all_conclusive: bool, all_finite: bool) -> None:
        pass
