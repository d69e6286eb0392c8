"""The check that what is not trained stays as it was: what a forward writes has no noise.

Running averages, counts of what was looked up, and tables that a lookup rescales are such. They are
saved with the model, and no clipping bounds what one record leaves in them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

# Whole numbers as wide as a tensor's, by bytes.
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Numbers at a time: a sum in int64 takes a copy in that.
_PIECE = 2**22
# Every so many numbers are added up: what changes places changes one of the sums.
_STRIDES = (1, 2, 3)


class Untouched:
    """Parameters and saved buffers of a model, to be compared with themselves later.

    Each is known by sums of its numbers' bits: they are exact, and take no copy of the model.

    Args:
        model: as it is now.
        moved: ids of tensors that may change: what an optimizer moves.
    """

    def __init__(self, model: nn.Module, moved: Collection[int] = ()) -> None:
        self._model = model
        self._tensors = {n: t for n, t in _saved(model) if id(t) not in moved}
        self._sums = self._of(self._tensors)

    def changed(self) -> list[str]:
        """Return the names of those that are not what they were, bit for bit."""
        now = {name: tensor for name, tensor in _saved(self._model) if name in self._tensors}
        for name, before in self._tensors.items():
            # What is sharded is put together for the time that it is used.
            if name not in now or hasattr(before, "to_local"):
                now[name] = before
        sums = self._of(now)
        return [name for name, before in self._sums.items() if sums[name] != before]

    @torch.no_grad()
    def _of(self, tensors: Mapping[str, Tensor]) -> dict[str, object]:
        found = {name: bit_sums(tensor) for name, tensor in tensors.items()}
        shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
        return {name: (shapes[name], one.tolist()) for name, one in found.items()}


def written(names: list[str], model: nn.Module) -> str:
    """Return the error message about tensors that have changed."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"a forward of {type(model).__name__} writes to {names[0]}{more}, which is not trained: "
        "statistics, counts or rescaled tables keep what they saw of private records, without "
        "noise. Switch them off, or use another model; clip=none trains without privacy"
    )


def _saved(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Iterate over parameters, and the buffers that are saved with them."""
    for prefix, module in model.named_modules():
        tensors = {**module._parameters, **module._buffers}
        for name, tensor in tensors.items():
            if tensor is not None and name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}".lstrip("."), tensor


def bit_sums(tensor: Tensor) -> Tensor:
    """Return sums of a tensor's bits, int64; zeros of one without data."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    local = local.detach()
    if local.is_meta or not local.numel():
        return torch.zeros(len(_STRIDES), dtype=torch.int64)
    if local.is_complex():
        local = torch.view_as_real(local)
    bits = local.contiguous().view(-1).view(_WHOLE[local.element_size()])
    sums = [
        torch.stack([piece[::stride].sum(dtype=torch.int64) for stride in _STRIDES])
        for piece in bits.split(_PIECE)
    ]
    return torch.stack(sums).sum(0)


def random_states(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return states of the generators that a module which is given these tensors draws from."""
    devices = sorted({x.get_device() for x in tensors if x.is_cuda})
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


@contextmanager
def random_state_kept(*tensors: Tensor) -> Iterator[None]:
    """Within this context what is drawn is drawn again afterwards."""
    devices = sorted({x.get_device() for x in tensors if x.is_cuda})
    with torch.random.fork_rng(devices):
        yield
