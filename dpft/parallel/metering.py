"""Bytes that live, and bytes that are sent: counted at every operation of torch, fake or real."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

_c10d: Any = torch.ops.c10d
_functional: Any = torch.ops._c10d_functional

# Collectives by what PyTorch calls them: the kind, and which argument holds the whole message (the
# tensor that all ranks have together), in whose size they are counted. None: the message is as many
# times the first argument as the group has ranks.
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
    _c10d.send: ("send", 0),
}
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "broadcast", "send")

# How often a rank passes a message on, but for its own part of it.
_TIMES = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2, "broadcast": 1}


def sent(kind: str, message: int, ranks: int) -> int:
    """Bytes that each rank sends for a message, where a collective sends as little as it can.

    Of a message of ``n`` bytes in ``N`` equal parts a rank passes on ``N - 1`` parts: to gather
    them, or to scatter their sums; to sum them up on every rank takes both. Rings do so (Patarasuk
    & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations").

    Args:
        kind: one of `KINDS`.
        message: its bytes.
        ranks: of the group that it is for.
    """
    return message if kind == "send" else _TIMES[kind] * message * (ranks - 1) // ranks


class Gauge(Protocol):
    """What `dpft.parallel.simulate.steps` reads: see `Meter`."""

    now: int
    peak: int
    messages: Counter[str]
    calls: Counter[str]
    sent: Counter[str]

    def clear(self) -> None:
        """Forget messages and calls."""


class Meter(TorchDispatchMode):
    """Bytes of all storages that live, and of the messages of all collectives.

    A storage counts from the operation that gave it until nothing refers to it, also where FSDP
    makes it larger and smaller in place.

    Args:
        fake: the mode whose tensors are counted; None: real ones.

    Attributes:
        now: bytes that live.
        peak: the most since it was set.
        messages: bytes by kind of collective since `clear`.
        calls: collectives by kind.
        sent: bytes that this rank sends for them, see the function of that name.
    """

    def __init__(self, fake: FakeTensorMode | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.messages: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._fake = fake
        self._sizes: dict[int, int] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._resize: Any = None

    def clear(self) -> None:
        for counter in (self.messages, self.calls, self.sent):
            counter.clear()

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
        ranks = _ranks(args)
        message = sum(t.nbytes for t in tree_iter(args[place or 0]) if isinstance(t, Tensor))
        message *= ranks if place is None else 1
        self.messages[kind] += message
        self.calls[kind] += 1
        self.sent[kind] += sent(kind, message, ranks)

    def _see(self, tensor: Tensor) -> None:
        # Shapes of sharded results are found on fake tensors of PyTorch's own.
        if getattr(tensor, "fake_mode", None) is not self._fake or type(tensor) is DTensor:
            return
        if tensor.device.type == "meta":
            return  # has no memory, whatever its storage says
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


def _ranks(args: tuple[Any, ...]) -> int:
    """Ranks of the group that a collective's arguments name, as an object or by its name."""
    for argument in args:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            return dist.ProcessGroup.unbox(argument).size()
        if isinstance(argument, dist.ProcessGroup):
            return argument.size()
    name = next(a for a in reversed(args) if isinstance(a, str))
    known: Any = dist.distributed_c10d
    return int(known._resolve_process_group(name).size())
