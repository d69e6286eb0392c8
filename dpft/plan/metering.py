"""Count at every operation of torch, fake or real: bytes that live, and arithmetic.

The time of one operation on a device is at least its floating-point operations over the rate of
their precision, and the bytes it reads and writes over the bandwidth of its memory (the roofline of
Williams, Waterman & Patterson 2009). Both depend on shapes alone, so fake tensors will do.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

_aten: Any = torch.ops.aten


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
