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
_NAMES = "_local_scalar_dense is_nonzero nonzero masked_select equal bincount unique_dim _unique"
_READS = {getattr(_aten, name) for name in [*_NAMES.split(), "_unique2", "unique_consecutive"]}
# Those that no dispatch mode sees where all is on the CPU.
_OUT_OF_TORCH = {Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__array__}
_INDEXED = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_}


class Waits(TorchDispatchMode):
    """Counts where the host would wait for a device, by operation, in ``found``.

    Every tensor counts as the device's, also one on the CPU, so that this needs no device; but for
    those of ``host``, and what follows from such alone.
    """

    def __init__(self, host: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.host: Any = WeakIdKeyDictionary(dict.fromkeys(host, True))
        self.calls = _Calls(self)

    def __enter__(self) -> Waits:
        self.calls.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.calls.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [x for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)]
        operation = func._overloadpacket
        out = func(*args, **(kwargs or {}))
        # What is made of Python's numbers is lifted.
        if operation is _aten.lift_fresh or (given and all(x in self.host for x in given)):
            self.host.update((x, True) for x in tree_iter(out) if isinstance(x, Tensor))
        elif (
            operation in _READS
            or (
                operation in _INDEXED  # a mask is a number of rows
                and any(x.dtype in (torch.bool, torch.uint8) for x in given[1:])
            )
        ):
            self.found[str(operation)] += 1
        return out


class _Calls(TorchFunctionMode):
    """Finds what leaves torch without an operation of its own."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _OUT_OF_TORCH and args[0] not in self.waits.host:
            self.waits.found[func.__name__] += 1
        return func(*args, **(kwargs or {}))
