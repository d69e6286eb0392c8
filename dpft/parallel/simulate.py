"""One rank of many, without data: what a step holds in memory, and what it sends.

The real model, clipper, sharding and optimizer run on fake tensors, which have shapes and no
numbers, and in a process group of which one rank exists and which sends nothing. Two modes look at
every operation of torch: `Answers` stands in for the numbers that a step asks for, and `Meter`
keeps count of storages and collectives. The meter counts real tensors and real ranks as well, which
is how its figures are checked.

What is not counted: an allocator's rounding and fragmentation, what kernels and NCCL take inside,
the CUDA context, and on a GPU what waits to be freed on another stream.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.weak import WeakIdKeyDictionary

from dpft.parallel.cohort import Replicas
from dpft.parallel.sharded import Shards, shard
from dpft.privacy.clipping.checks.schedule import Schedule
from dpft.privacy.clipping.clipper import Clipper
from dpft.privacy.cohort import Cohort

LAYOUTS = ("data", "fsdp")

FORWARD, BACKWARD, REDUCTION, OPTIMIZER = "forward", "backward", "reduction", "optimizer"
PHASES = (FORWARD, BACKWARD, REDUCTION, OPTIMIZER)

_aten: Any = torch.ops.aten
_c10d: Any = torch.ops.c10d
_functional: Any = torch.ops._c10d_functional

# Collectives by what PyTorch calls them: the kind, and which argument holds the whole message (the
# tensor that all ranks have together), in whose size they are counted. None: the message is as many
# times the argument as there are ranks.
_COLLECTIVES: Mapping[Any, tuple[str, int | None]] = {
    _c10d.allreduce_: ("all-reduce", 0),
    _c10d.allreduce_coalesced_: ("all-reduce", 0),
    _functional.all_reduce: ("all-reduce", 0),
    _functional.all_reduce_: ("all-reduce", 0),
    _functional.all_reduce_coalesced: ("all-reduce", 0),
    _c10d._allgather_base_: ("all-gather", 0),
    _c10d.allgather_: ("all-gather", 0),
    _c10d.allgather_into_tensor_coalesced_: ("all-gather", 0),
    _functional.all_gather_into_tensor: ("all-gather", None),
    _functional.all_gather_into_tensor_out: ("all-gather", None),
    _functional.all_gather_into_tensor_coalesced: ("all-gather", None),
    _c10d._reduce_scatter_base_: ("reduce-scatter", 1),
    _c10d.reduce_scatter_: ("reduce-scatter", 1),
    _c10d.reduce_scatter_tensor_coalesced_: ("reduce-scatter", 1),
    _functional.reduce_scatter_tensor: ("reduce-scatter", 0),
    _functional.reduce_scatter_tensor_coalesced: ("reduce-scatter", 0),
    _c10d.broadcast_: ("broadcast", 0),
    _functional.broadcast: ("broadcast", 0),
}
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "broadcast")


_ANSWERS: Mapping[Any, int] = {_aten.any: 0, _aten.norm: 0, _aten.linalg_vector_norm: 0}


class Answers(TorchDispatchMode):
    """Answers what a step asks about its numbers, as where all goes well.

    ``all`` is true and ``any`` is false, a norm is zero and every other number one, and all rows
    are chosen: no loss overflows, no norm is in doubt, no gradient differs from autograd's. What a
    program made of a number of its own PyTorch remembers.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # By tensor: a fake one cannot say what it came from.
        self._answers: Any = WeakIdKeyDictionary()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if args and isinstance(args[0], FakeTensor):
            if func in (_aten._local_scalar_dense.default, _aten.is_nonzero.default):
                return self._number(args[0])
            if func is _aten.nonzero.default:
                shape = (args[0].shape[0] if args[0].dim() else 1, args[0].dim())
                return args[0].new_empty(shape, dtype=torch.int64)
        out = func(*args, **(kwargs or {}))
        answer = _ANSWERS.get(getattr(func, "overloadpacket", None))
        if answer is not None and isinstance(out, FakeTensor):
            self._answers[out] = answer
        return out

    def _number(self, asked: FakeTensor) -> bool | int | float:
        if asked.constant is not None:
            with no_dispatch():
                known: bool | int | float = asked.constant.item()
            return known
        answer = self._answers.get(asked, 1)
        if asked.dtype == torch.bool:
            return bool(answer)
        return float(answer) if asked.is_floating_point() else int(answer)


class Gauge(Protocol):
    """What `steps` reads: see `Meter`."""

    now: int
    peak: int
    messages: Counter[str]
    calls: Counter[str]

    def clear(self) -> None:
        """Forget messages and calls."""


class Meter(TorchDispatchMode):
    """Bytes of all storages that live, and of the messages of all collectives.

    A storage counts from the operation that gave it until nothing refers to it, also where FSDP
    makes it larger and smaller in place.

    Args:
        fake: the mode whose tensors are counted; None: real ones.
        ranks: of the process group.

    Attributes:
        now: bytes that live.
        peak: the most since it was set.
        messages: bytes by kind of collective since `clear`, see `sent`.
        calls: collectives by kind.
    """

    def __init__(self, fake: FakeTensorMode | None = None, ranks: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.messages: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._fake = fake
        self._ranks = ranks
        self._sizes: dict[int, int] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._resize: Any = None

    def clear(self) -> None:
        self.messages.clear()
        self.calls.clear()

    def __enter__(self) -> Meter:
        # FSDP frees a layer's whole parameters by resizing their storage, which is no operation.
        self._resize = before = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> None:
            before(storage, size)
            if storage._cdata in self._sizes:
                self._set(storage._cdata, size)

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its operations on this rank's part come here by themselves
        packet = getattr(func, "overloadpacket", None)
        if packet is _functional.wait_tensor and self._fake is not None:
            return args[0]  # a fake one would be a copy
        out = func(*args, **(kwargs or {}))
        if packet in _COLLECTIVES:
            self._count(*_COLLECTIVES[packet], args)
        for tensor in (out,) if isinstance(out, Tensor) else tree_iter(out):
            if isinstance(tensor, Tensor):
                self._see(tensor)
        return out

    def _count(self, kind: str, place: int | None, args: tuple[Any, ...]) -> None:
        message = sum(t.nbytes for t in tree_iter(args[place or 0]) if isinstance(t, Tensor))
        self.messages[kind] += message * (self._ranks if place is None else 1)
        self.calls[kind] += 1

    def _see(self, tensor: Tensor) -> None:
        # Shapes of sharded results are found on fake tensors of PyTorch's own.
        if getattr(tensor, "fake_mode", None) is not self._fake or type(tensor) is DTensor:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            self._references[key] = weakref.ref(storage, partial(self._forget, key))
        self._set(key, storage.nbytes())

    def _set(self, key: int, size: int) -> None:
        self.now += size - self._sizes[key]
        self._sizes[key] = size
        self.peak = max(self.peak, self.now)

    def _forget(self, key: int, _: Any) -> None:
        del self._references[key]
        self.now -= self._sizes.pop(key)


@dataclass(frozen=True)
class Cost:
    """What one rank holds and sends.

    Attributes:
        parameters: of the whole model.
        trained: of these.
        held: bytes between steps: weights and the optimizer's state.
        peaks: the most bytes in each of `PHASES` of a step.
        checked: the most in the backward of a step whose layer rules are checked against autograd;
            None where none is.
        messages: bytes of the messages of a step by kind of collective, see `sent`.
        calls: collectives of a step, by kind.
    """

    parameters: int
    trained: int
    held: int
    peaks: Mapping[str, int]
    checked: int | None
    messages: Mapping[str, int]
    calls: Mapping[str, int]

    @property
    def peak(self) -> int:
        """The most bytes at any time."""
        return max(self.checked or 0, *self.peaks.values())


def sent(messages: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Bytes that each rank sends, where a collective sends as little as it can.

    Of a message of ``n`` bytes in ``N`` equal parts a rank passes on ``N - 1`` parts: to gather
    them, or to scatter their sums; to sum them up on every rank takes both. Rings do so (Patarasuk
    & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations").
    """
    times = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2, "broadcast": 1}
    return {
        kind: times[kind] * messages[kind] * (ranks - 1) // ranks
        for kind in KINDS
        if messages.get(kind)
    }


@dataclass(frozen=True)
class Training:
    """What is trained, and how.

    Attributes:
        build: makes the model, in training mode.
        losses: runs it on one microbatch: per-example losses ``(B,)``.
        clip: attaches the clipper, given the model and the ranks that train it; None: this one.
        optimizer: of the clipper's parameters.
        layout: one of `LAYOUTS`.
        ranks: how many train together.
        microbatches: of each rank in a step.
    """

    build: Callable[[], nn.Module]
    losses: Callable[[nn.Module], Tensor]
    clip: Callable[[nn.Module, Cohort | None], Clipper]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    layout: str = "data"
    ranks: int = 1
    microbatches: int = 1


def simulated(training: Training, on_gpu: bool = True) -> Cost:
    """What the first of ``training.ranks`` ranks holds and sends; it has the largest shards.

    Args:
        training: is run on fake tensors.
        on_gpu: whether optimizers work on all parameters at once, as PyTorch's do by default on a
            GPU: faster, for memory.

    Raises:
        RuntimeError: if this process belongs to a process group already.
    """
    if dist.is_initialized():
        raise RuntimeError(
            "this process is in a process group already; expected none, since a simulation makes "
            "one of its own: simulate in a process by itself, without torchrun"
        )
    with torch.device("meta"):
        model = training.build()
    with ExitStack() as stack:
        mesh = stack.enter_context(fake_ranks(training.ranks)) if training.ranks > 1 else None
        fake = stack.enter_context(FakeTensorMode())
        stack.enter_context(Answers())
        meter = stack.enter_context(Meter(fake, training.ranks))
        _give_storages(model)
        return steps(training, meter, model, mesh, _stacked if on_gpu else lambda optimizer: None)


@contextmanager
def fake_ranks(ranks: int) -> Iterator[DeviceMesh]:
    """A process group of which this process is the first rank, and no other exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        # Before tensors are fake: a mesh looks at its numbers.
        yield init_device_mesh("cpu", (ranks,))
    finally:
        dist.destroy_process_group()


def _give_storages(model: nn.Module) -> None:
    """Put new tensors in place of a model's, which lie on the meta device and take no memory."""
    made: dict[Tensor, Tensor] = {}
    for module in model.modules():
        every: list[Any] = [module._parameters, module._buffers]
        for held in every:
            for name, tensor in held.items():
                if tensor is None:
                    continue
                if tensor not in made:
                    new = torch.empty(tensor.shape, dtype=tensor.dtype)
                    moves = tensor.requires_grad
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[tensor] = nn.Parameter(new, moves) if is_parameter else new
                held[name] = made[tensor]


def _stacked(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        if "foreach" in group:
            group["foreach"] = True


def steps(
    training: Training,
    meter: Gauge,
    model: nn.Module,
    mesh: DeviceMesh | None = None,
    adjust: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None,
) -> Cost:
    """Run a step, and one that is checked, under the meter; on fake tensors or on real ones.

    The optimizer has its state before the first: a rank holds it in every other step.

    Args:
        training: what is run.
        meter: entered already.
        model: which was built as the training says, under the meter.
        mesh: of the ranks; None: there is one.
        adjust: called with the optimizer.
    """
    every = [(p.numel(), p.requires_grad) for p in model.parameters()]
    parameters, trained = (sum(n for n, moves in every if moves or kept) for kept in (True, False))
    cohort = None if mesh is None else _cohort(training.layout)
    if mesh is not None and training.layout == "fsdp":
        shard(model, mesh)
    clipper = training.clip(model, cohort)
    schedule = clipper._schedule = _Told()
    optimizer = training.optimizer(clipper.parameters.values())
    adjust(optimizer)
    for parameter in clipper.parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    peaks = dict.fromkeys(PHASES, 0)

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        meter.peak = meter.now
        yield
        peaks[name] = max(peaks[name], meter.peak)

    def step() -> None:
        for _ in range(training.microbatches):
            with phase(FORWARD):
                losses = training.losses(model)
            with phase(BACKWARD):
                clipper.backward(losses)
                del losses
        with phase(REDUCTION):
            clipper.collect()
        with phase(OPTIMIZER):
            optimizer.step()
        optimizer.zero_grad()

    meter.clear()
    step()
    usual, messages, calls = dict(peaks), dict(meter.messages), dict(meter.calls)
    held, checked = meter.now, None
    if clipper.private:
        peaks.update(dict.fromkeys(PHASES, 0))
        schedule.check = True
        step()
        checked = peaks[BACKWARD]
    clipper.close()
    return Cost(parameters, trained, held, usual, checked, messages, calls)


class _Told(Schedule):
    """Whether a batch is checked is said, and does not depend on what checks have shown."""

    check = False

    def due(self, *batch: Any) -> bool:
        return self.check

    def checked(self, all_conclusive: bool, all_finite: bool) -> None:
        pass


def _cohort(layout: str) -> Cohort:
    """The ranks of a layout, all of which find what this one does."""
    base: type[Replicas] = Shards if layout == "fsdp" else Replicas

    class Alike(base):  # type: ignore[misc, valid-type]
        def any(self, flag: bool) -> bool:
            super().any(flag)
            return flag

        def agree(self, flags: Sequence[bool], word: str) -> list[bool]:
            self._largest([int(flag) for flag in flags], word)  # sent, and answered by nobody
            return list(flags)

    return Alike()
