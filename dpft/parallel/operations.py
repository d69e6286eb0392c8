"""The arithmetic of a step: products by precision, and the bytes that every operation moves.

What a device needs for one operation is at least its floating-point operations over the rate of
their precision, and the bytes it reads and writes over the bandwidth of its memory (the roofline of
Williams, Waterman & Patterson 2009). Both are of shapes alone, so fake tensors will do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

_aten: Any = torch.ops.aten

# Attention: where the queries are among the arguments. Not in PyTorch's table, of the CPU.
_ATTENTION: Mapping[Any, int] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: 0,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: 1,
}
# Products with one vector, which PyTorch's table lacks too.
_WITH_VECTOR = {_aten.mv, _aten.addmv, _aten.addmv_, _aten.dot, _aten.vdot}
# What reads no more than it writes: looked up, or made of nothing.
_LOOKS_UP = {
    _aten.embedding,
    _aten.index,
    _aten.index_select,
    _aten.gather,
    _aten._index_put_impl_,
    _aten.index_put_,
    _aten.index_add_,
    _aten.scatter_add_,
}
_WRITES = {
    _aten.fill_,
    _aten.zero_,
    _aten.zeros,
    _aten.zeros_like,
    _aten.ones,
    _aten.full,
    _aten.full_like,
    _aten.new_zeros,
    _aten.new_full,
    _aten.arange,
}
_NOTHING = {
    _aten.empty,
    _aten.empty_like,
    _aten.new_empty,
    _aten.empty_strided,
    _aten.new_empty_strided,
    _aten.resize_,
    _aten.set_,
    _aten._unsafe_view,
    _aten._local_scalar_dense,
    _aten.is_nonzero,
    _aten.lift_fresh,
}


class Operation(NamedTuple):
    """One operation of torch, as far as its time depends on it.

    Attributes:
        precision: in which a product's factors are multiplied, as ``float32``; empty where nothing
            is. Of float32 copies of numbers in bfloat16 it may be that (`precision.by_tiles`).
        flops: floating-point operations of a product: two for a multiplication and its addition.
        moved: bytes read and written.
    """

    precision: str
    flops: int
    moved: int


class Operations(TorchDispatchMode):
    """Counts operations while it is entered; collectives are no operations of the device.

    Attributes:
        counted: how often each one was.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted: Counter[Operation] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its operations on this rank's part come here by themselves
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = getattr(func, "overloadpacket", None)
        free = packet in _NOTHING or getattr(func, "is_view", False) or _is_elsewhere(func)
        if packet is not None and not free:
            self.counted[_operation(packet, args, kwargs, out)] += 1
        return out


def flops(counted: Mapping[Operation, int]) -> dict[str, int]:
    """Floating-point operations of products, by precision."""
    found: Counter[str] = Counter()
    for operation, times in counted.items():
        if operation.precision:
            found[operation.precision] += times * operation.flops
    return dict(found)


def outside_halves(counted: Mapping[Operation, int]) -> float:
    """The share of products' floating-point operations whose factors are not in half precision."""
    by = flops(counted)
    halves = by.get("bfloat16", 0)
    return 1 - halves / sum(by.values()) if by else 0.0


def _is_elsewhere(func: Any) -> bool:
    """Whether it is a collective, or a question about a tensor that needs no device."""
    space = getattr(func, "namespace", "")
    return "c10d" in space or space == "prim"


def _operation(packet: Any, args: Any, kwargs: Any, out: Any) -> Operation:
    inputs = list(_tensors((args, kwargs)))
    moved = _moved(packet, inputs, list(_tensors(out)))
    # The second is a factor of every product: addmm begins with what is added to, and a result that
    # is given, which may be wider, comes last.
    factors = list(_tensors(args))
    if packet in _ATTENTION:
        first = _ATTENTION[packet]
        found = _attention(first > 0, *args[first : first + 3])
        masked = args[-1] is True or kwargs.get("is_causal", False)
        # Blocks above the diagonal are left out.
        return Operation(_kind(factors[1]), found // (2 if masked else 1), moved)
    if packet in flop_registry:
        # PyTorch's formulas take the type of a product's result for its shape.
        shapes = [x for x in args if not isinstance(x, torch.dtype)]
        found = int(flop_registry[packet](*shapes, **kwargs, out_val=out))
        return Operation(_kind(factors[1]), found, moved)
    if packet in _WITH_VECTOR:
        return Operation(_kind(factors[1]), 2 * factors[-2].numel(), moved)
    return Operation("", 0, moved)


def _attention(backward: bool, q: Tensor, k: Tensor, v: Tensor) -> int:
    """Count operations for queries ``(B, H, T, d)``, and for keys that may have fewer heads.

    The scores and their product with the values; in the backward the scores again, and the
    gradients of both products' factors. PyTorch's own formula refuses groups in some versions.
    """
    scores = 2 * math.prod(q.shape[:-1]) * k.shape[-2]
    d, d_v = q.shape[-1], v.shape[-1]
    return scores * (3 * d + 2 * d_v if backward else d + d_v)


def _kind(factor: Tensor) -> str:
    backends: Any = torch.backends
    if factor.dtype == torch.float32 and factor.device.type == "cpu":
        halved = backends.mkldnn.matmul.fp32_precision == "bf16"
        return "bfloat16" if halved else "float32"
    return str(factor.dtype).removeprefix("torch.")


def _moved(packet: Any, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    written = _bytes(outputs)
    if packet in _WRITES:
        return written
    if packet is _aten.copy_:
        return written + _bytes(inputs[1:])
    if packet is _aten.embedding_dense_backward:
        return _bytes(inputs) + written
    if packet in _LOOKS_UP:
        # In place it adds its values, the last of the arguments, to where they belong.
        same = inputs and outputs and inputs[0] is outputs[0]
        return 3 * _bytes(inputs[-1:]) if same else 2 * written
    return _bytes(inputs) + written


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum({id(t): _extent(t) for t in tensors}.values())


def _extent(tensor: Tensor) -> int:
    """What lies in memory: of a dimension along which a tensor is expanded, one entry."""
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in sides if stride) * tensor.element_size()


def _tensors(tree: Any) -> Iterable[Tensor]:
    return (leaf for leaf in tree_iter(tree) if isinstance(leaf, Tensor))
