"""Where a host would wait for a device, found without one: a mode that sees every operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.weak import WeakIdKeyDictionary

_aten: Any = torch.ops.aten

# A number, a list of places or a number of rows that the host needs before it goes on.
_READS = frozenset(
    getattr(_aten, name)
    for name in (
        *("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "bincount"),
        *("unique_dim", "_unique", "_unique2", "unique_consecutive"),
    )
)
# Those that no dispatch mode sees where all is on the CPU.
_OUT_OF_TORCH = frozenset({Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__array__})
_INDEXED = frozenset({_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_})
_COPIES = frozenset({_aten._to_copy, _aten.copy_})


class Waits(TorchDispatchMode):
    """Counts where the host would wait for a device, by operation, in ``found``.

    Every tensor counts as the device's, also one on the CPU, so that this needs no device; but for
    those of ``host``, and what follows from such alone.
    """

    def __init__(self, host: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[str] = Counter()
        self._host: Any = WeakIdKeyDictionary()
        self._calls = _Calls(self)
        for x in host:
            self._host[x] = True

    def __enter__(self) -> Waits:
        self._calls.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._calls.__exit__(*error)  # type: ignore[no-untyped-call]

    def sees(self, x: Any) -> bool:
        """Whether a tensor counts as a device's."""
        return isinstance(x, Tensor) and x not in self._host

    @property
    def count(self) -> int:
        """All of them."""
        return sum(self.found.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [x for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)]
        operation = func._overloadpacket
        out = func(*args, **kwargs)
        # What is made of Python's numbers is lifted.
        if (given and not any(map(self.sees, given))) or operation is _aten.lift_fresh:
            for x in tree_iter(out):
                if isinstance(x, Tensor):
                    self._host[x] = True
        elif self._blocks(operation, given, kwargs, out):
            self.found[str(operation)] += 1
        return out

    def _blocks(self, operation: Any, given: list[Tensor], kwargs: Any, out: Any) -> bool:
        if operation in _INDEXED:  # a mask is a number of rows
            return any(x.dtype in (torch.bool, torch.uint8) for x in given[1:])
        if operation in _COPIES:
            devices = {x.device for x in (*given, out)}
            return len(devices) > 1 and not kwargs.get("non_blocking", False)
        return operation in _READS


class _Calls(TorchFunctionMode):
    """Finds what leaves torch without an operation of its own."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _OUT_OF_TORCH and self._waits.sees(args[0]):
            self._waits.found[func.__name__] += 1
        return func(*args, **(kwargs or {}))
