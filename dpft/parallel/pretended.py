"""What a rank that is alone and has no numbers takes for the others, and for its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from dpft.parallel.cohort import Replicas

_aten: Any = torch.ops.aten
_ANSWERS: Mapping[Any, int] = {_aten.any: 0, _aten.norm: 0, _aten.linalg_vector_norm: 0}


class PretendedAnswers(TorchDispatchMode):
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


@contextmanager
def fake_ranks(ranks: int, rank: int = 0) -> Iterator[None]:
    """A process group of which this process is one rank, and no other exists; none for one rank.

    Raises:
        RuntimeError: if this process belongs to a process group already.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise RuntimeError(
            "this process is in a process group already; expected none, since a simulation makes "
            "one of its own: simulate in a process by itself, without torchrun"
        )
    if ranks == 1:
        yield
        return
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Alike(Replicas):
    """Ranks all of which find what this one does; to be mixed into those of a layout."""

    def any(self, flag: bool) -> bool:
        super().any(flag)
        return flag

    def agree(self, flags: Sequence[bool], word: str) -> list[bool]:
        self._largest([int(flag) for flag in flags], word)  # sent, and answered by nobody
        return list(flags)


def give_storages(model: nn.Module) -> None:
    """Put new tensors in place of a model's, which lie on the meta device and take no memory."""
    made: dict[Tensor, Tensor] = {}
    for held, name, tensor in _tensors(model):
        if tensor not in made:
            new = torch.empty(tensor.shape, dtype=tensor.dtype)
            is_parameter = isinstance(tensor, nn.Parameter)
            made[tensor] = nn.Parameter(new, tensor.requires_grad) if is_parameter else new
        held[name] = made[tensor]


def _tensors(model: nn.Module) -> Iterator[tuple[Any, str, Tensor]]:
    for module in model.modules():
        every: list[Any] = [module._parameters, module._buffers]
        for held in every:
            for name, tensor in list(held.items()):
                if tensor is not None:
                    yield held, name, tensor
