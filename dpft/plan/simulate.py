"""Simulate a training step without data or device: its memory and its arithmetic.

The real model, clipper and optimizer run on fake tensors, which have shapes and no numbers. Three
modes see every operation of torch: `PretendedAnswers` supplies the numbers that a step asks for,
`Meter` counts storages, `Operations` counts what is computed. They count real tensors as well,
which is how the simulation is tested.

Not counted: an allocator's rounding and fragmentation, what kernels allocate themselves, and the
CUDA context.

The time of one operation on a device is at least its floating-point operations over the rate of
their precision, and the bytes it reads and writes over the bandwidth of its memory (the roofline of
Williams, Waterman & Patterson 2009). Both depend on shapes alone, so fake tensors will do.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from dpft.models.nf4 import count
from dpft.privacy.clipping.clipper import Clipper
from dpft.privacy.precision import as_on_gpu
from dpft.privacy.verification.checker import Checker, Schedule

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"

_aten: Any = torch.ops.aten
_ANSWERS: Mapping[Any, int] = {_aten.any: 0, _aten.norm: 0, _aten.linalg_vector_norm: 0}


@dataclass(frozen=True)
class Cost:
    """The memory and the computations of a step of one microbatch on a device.

    Attributes:
        parameters: of the whole model.
        trained: of these.
        held: bytes between steps: weights and the optimizer's state.
        peaks: the most bytes in each phase of a step.
        checked: the most bytes in a step whose layer rules are checked against autograd; None if
            none is.
        work: how often each operation is computed in each phase.
    """

    parameters: int
    trained: int
    held: int
    peaks: Mapping[str, int]
    checked: int | None
    work: Mapping[str, Mapping[Operation, int]] = field(repr=False)

    @property
    def peak(self) -> int:
        """The most bytes at any time."""
        return max(self.checked or 0, *self.peaks.values())


@dataclass(frozen=True)
class Training:
    """A training to simulate: the model, its batches and its clipping.

    Attributes:
        build: makes the model, in training mode.
        batch: makes a microbatch.
        losses: runs the model on one: per-example losses ``(B,)``.
        clip: attaches the clipper.
        optimizer: of the clipper's parameters.
        few: selects the records of a microbatch on which rules are checked; None: all.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[], Any]
    losses: Callable[[nn.Module, Any], Tensor]
    clip: Callable[[nn.Module], Clipper]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    few: Callable[[Any], Any] | None = None


def simulated(training: Training, on_gpu: bool = True, counts: bool = True) -> Cost:
    """Simulate a step on fake tensors; see `steps`.

    On a GPU products of bfloat16 stay such, and optimizers work on all parameters at once.
    """
    with ExitStack() as stack:
        with torch.device("meta"):
            model = training.build()
        fake = stack.enter_context(FakeTensorMode())
        stack.enter_context(PretendedAnswers())
        meter = stack.enter_context(Meter(fake))
        give_storages(model)
        if on_gpu:
            stack.enter_context(as_on_gpu())
        return steps(training, meter, model, on_gpu, counts)


def steps(
    training: Training,
    meter: Meter,
    model: nn.Module,
    stacked: bool = False,
    counts: bool = True,
) -> Cost:
    """Run a step, and one that is checked, under the meter; on fake tensors or on real ones.

    The optimizer has its state before the first step, as in every later one.

    Args:
        training: what is run.
        meter: entered already.
        model: built under the meter.
        stacked: whether the optimizer works on all parameters at once.
        counts: whether operations are counted; memory alone needs no formula of one.
    """
    parameters = count(model)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    clipper, schedule = training.clip(model), _Schedule()
    for observer in clipper.observers:
        if isinstance(observer, Checker):
            observer.schedule = schedule
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
        batch = training.batch()
        if schedule.check and training.few is not None:
            with phase(BACKWARD):
                clipper.check(training.losses(model, training.few(batch)))
        with phase(FORWARD):
            losses = training.losses(model, batch)
        with phase(BACKWARD):
            clipper.backward(losses)
            del losses
        with phase(OPTIMIZER):
            clipper.collect()
            optimizer.step()
        optimizer.zero_grad()

    step()
    usual, computed = dict(peaks), {name: dict(counted) for name, counted in work.items()}
    held, checked = meter.now, None
    if clipper.private:
        peaks.clear()
        schedule.check = True
        step()
        checked = peaks[BACKWARD]
    clipper.close()
    return Cost(parameters, trained, held, usual, checked, computed)


class _Schedule(Schedule):
    """A schedule whose caller decides whether a batch is checked."""

    check = False

    def due(self, *batch: Any) -> bool:
        return self.check

    def checked(self, all_conclusive: bool, all_finite: bool) -> None:
        pass


class PretendedAnswers(TorchDispatchMode):
    """Answers what a step asks about the numbers of fake tensors, as where all goes well.

    ``all`` is true and ``any`` is false, a norm is zero and every other number one, and all rows
    are selected: no loss overflows, no norm is in doubt, no gradient differs from autograd's.
    PyTorch itself remembers the value of a constant.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # By tensor, since a fake one does not know which operation made it.
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


def give_storages(model: nn.Module) -> None:
    """Replace a model's tensors, which are on the meta device and take no memory, by new ones."""
    made: dict[Tensor, Tensor] = {}
    for module in model.modules():
        every: list[Any] = [module._parameters, module._buffers]
        for held in every:
            for name, tensor in list(held.items()):
                if tensor is None:
                    continue
                if tensor not in made:
                    new = torch.empty(tensor.shape, dtype=tensor.dtype)
                    if isinstance(tensor, nn.Parameter):
                        new = nn.Parameter(new, tensor.requires_grad)
                    made[tensor] = new
                held[name] = made[tensor]


class Meter(TorchDispatchMode):
    """Counts the bytes of all storages that live.

    A storage counts from the operation that gave it until nothing refers to it.

    Args:
        fake: the mode whose tensors are counted; None: real ones.

    Attributes:
        now: bytes that live.
        peak: the most since it was set.
    """

    def __init__(self, fake: FakeTensorMode | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._fake = fake
        self._sizes: dict[int, int] = {}
        self._references: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in (out,) if isinstance(out, Tensor) else tree_iter(out):
            if not isinstance(tensor, Tensor) or tensor.device.type == "meta":
                continue  # the meta device has no memory, whatever its storage says
            if getattr(tensor, "fake_mode", None) is not self._fake:
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self._sizes:
                self._sizes[key] = 0
                self._references[key] = weakref.ref(storage, partial(self._forget, key))
            self.now += storage.nbytes() - self._sizes[key]
            self._sizes[key] = storage.nbytes()
            self.peak = max(self.peak, self.now)
        return out

    def _forget(self, key: int, _: Any) -> None:
        del self._references[key]
        self.now -= self._sizes.pop(key)


def _packets(names: str) -> frozenset[Any]:
    return frozenset(getattr(_aten, name) for name in names.split())


# Attention on a CPU, where the simulation runs; PyTorch's table of formulas lacks it.
_ATTENTION = _packets(
    "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward"
)
# What reads no more than it writes: looked up, or made of nothing.
_LOOKS_UP = _packets(
    "embedding index index_select gather _index_put_impl_ index_put_ index_add_ scatter_add_"
)
_WRITES = _packets("fill_ zero_ zeros zeros_like ones full full_like new_zeros new_full arange")
# What moves no bytes.
_NOTHING = _packets(
    "empty empty_like new_empty empty_strided new_empty_strided resize_ set_ _unsafe_view "
    "_local_scalar_dense is_nonzero lift_fresh"
)


class Operation(NamedTuple):
    """One operation of torch, as far as its time depends on it.

    Attributes:
        precision: in which a product's factors are multiplied, as ``float32``; empty where nothing
            is.
        flops: floating-point operations of a product: two for a multiplication and its addition.
        moved: bytes read and written.
    """

    precision: str
    flops: int
    moved: int


class Operations(TorchDispatchMode):
    """Counts in ``counted`` how often each operation is computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted: Counter[Operation] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = getattr(func, "overloadpacket", None)
        free = packet in _NOTHING or getattr(func, "is_view", False)
        # ``prim`` are questions about a tensor that need no device.
        if packet is not None and not free and getattr(func, "namespace", "") != "prim":
            self.counted[_operation(func, args, kwargs, out)] += 1
        return out


def _operation(func: Any, args: Any, kwargs: Any, out: Any) -> Operation:
    packet = func.overloadpacket
    inputs = list(_tensors((args, kwargs)))
    moved = _moved(packet, inputs, list(_tensors(out)))
    # The second is a factor of every product: addmm begins with what is added to, and a result that
    # is given, which may be wider, comes last.
    factors = list(_tensors(args))
    if packet in _ATTENTION:
        named = (argument.name for argument in func._schema.arguments)
        given = {**dict(zip(named, args, strict=False)), **kwargs}
        found = _attention("grad_out" in given, *(given[x] for x in ("query", "key", "value")))
        # Blocks above the diagonal are left out.
        return Operation(_kind(factors[1]), found // (1 + given.get("is_causal", False)), moved)
    if packet in flop_registry:
        # PyTorch's formulas take the type of a product's result for its shape.
        shapes = [x for x in args if not isinstance(x, torch.dtype)]
        found = int(flop_registry[packet](*shapes, **kwargs, out_val=out))
        return Operation(_kind(factors[1]), found, moved)
    return Operation("", 0, moved)


def _attention(backward: bool, q: Tensor, k: Tensor, v: Tensor) -> int:
    """Count operations for queries ``(B, H, T, d)``, and for keys that may have fewer heads.

    Both directions have the scores and a product with the values; the backward also has the
    gradients of both products' factors.
    """
    scores = 2 * math.prod(q.shape[:-1]) * k.shape[-2]
    d, d_v = q.shape[-1], v.shape[-1]
    return scores * (3 * d + 2 * d_v if backward else d + d_v)


def _kind(factor: Tensor) -> str:
    return str(factor.dtype).removeprefix("torch.")


def _moved(packet: Any, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    written = _bytes(outputs)
    if packet in _WRITES:
        return written
    if packet is _aten.copy_:
        return written + _bytes(inputs[1:])
    if packet in _LOOKS_UP:
        # In place it adds its values, the last of the arguments, to where they belong.
        same = inputs and outputs and inputs[0] is outputs[0]
        return 3 * _bytes(inputs[-1:]) if same else 2 * written
    return _bytes(inputs) + written


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum({id(t): _extent(t) for t in tensors}.values())


def _extent(tensor: Tensor) -> int:
    """Return the bytes in memory: one entry of a dimension along which a tensor is expanded."""
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in sides if stride) * tensor.element_size()


def _tensors(tree: Any) -> Iterable[Tensor]:
    return (leaf for leaf in tree_iter(tree) if isinstance(leaf, Tensor))
