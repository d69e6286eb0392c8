"""Checks of what clipping takes for granted, for every algorithm and task.

What is not trained stays as it was (`Untouched`): what a forward writes has no noise. Running
averages, counts of what was looked up, and tables that a lookup rescales are such. They are saved
with the model, and no clipping bounds what one record leaves in them. A backward of reweighted
losses brings reweighted gradients (`Reweighted`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from dpft.privacy.clipping.calls import Call

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


# Sums over a row that are compared as well as its norm: a prime number of them, so that none is
# over a whole dimension of a layer, where softmax and norm layers make gradients cancel.
_SUMS = 61

# What rounding may change as a share of a row's norm at the call where it is largest: what is zero
# but for rounding, as behind a softmax, is other rounding then.
_ANYWHERE = 1e-5


class Reweighted:
    """Compares the output gradients of two backwards, of which the second is reweighted by record.

    They agree where the backward is linear. A hook that clamps gradients is not, nor is a model
    whose rows are in another order inside: the norms would be of other gradients than the sum.

    Args:
        share: of a row's norm, which rounding may change.
        sums: whether sums over parts of a row are compared too, for weights that are powers of two.
            They are linear, so that a share ``s`` of another record's gradient shows in them as
            ``s``, where in a norm it may as ``s^2``.
    """

    def __init__(self, share: float = 1e-2, sums: bool = False) -> None:
        self._share = share
        self._sums = sums
        self._seen: dict[int, Tensor] = {}
        self._scales = self._allowed = torch.empty(0)
        self._excess: list[Tensor] = []
        self._names: list[str] = []

    def first(self, call: Call, g: Tensor) -> None:
        """Note norms, and sums, of ``g``'s rows: ``(B, 1 + n)``."""
        self._seen[id(call)] = _numbers(g.detach(), self._sums)

    def by(self, scales: Tensor) -> None:
        """Set the factor of each row in the second backward, ``(B,)``."""
        self._scales = scales
        largest = torch.zeros_like(scales)
        for numbers in self._seen.values():
            norms = numbers[:, 0].to(largest)
            largest = torch.maximum(largest, norms.masked_fill(~norms.isfinite(), 0.0))
        self._allowed = _ANYWHERE * scales * largest

    def second(self, call: Call, g: Tensor) -> None:
        """Compare; `holds` returns the result, since to read it makes a GPU halt."""
        numbers = self._seen.pop(id(call), None)
        if numbers is None:
            return
        expected = numbers * self._scales.to(numbers)[:, None]
        allowed = self._share * expected[:, 0] + self._allowed.to(numbers)
        excess = (_numbers(g.detach(), self._sums) - expected).abs().amax(1) - allowed
        # A record whose loss is not finite is dropped, wherever its rows are.
        self._excess.append(excess.masked_fill(~expected[:, 0].isfinite(), -1.0).max())
        self._names.append(next(iter(call.site.names.values())))

    def holds(self) -> Tensor:
        """Return whether all agreed, a bool without dimensions."""
        return self._fine().all()

    def disagreeing(self) -> str | None:
        """Return a parameter of the first call of the backward that did not agree, if any."""
        pairs = zip(self._names, self._fine().tolist(), strict=True)
        return next((name for name, good in pairs if not good), None)

    def _fine(self) -> Tensor:
        """Return of every call that was compared, whether it agreed, bool ``(n,)``."""
        if not self._excess:
            return torch.ones(0, dtype=torch.bool)
        return torch.stack([one.to(self._excess[0].device) for one in self._excess]) <= 0


def _numbers(rows: Tensor, sums: bool) -> Tensor:
    """Return the rows' norms, and sums of every 61st number of each: ``(B, 1 + min(n, 61))``."""
    flat = rows.flatten(1)
    norms: Tensor = torch.linalg.vector_norm(flat, dim=1)
    if not sums:
        return norms[:, None]
    kind = torch.promote_types(flat.dtype, torch.float32)
    whole = flat.shape[1] // _SUMS * _SUMS
    if not whole:
        return torch.cat([norms[:, None], flat.to(kind)], 1)
    summed = flat[:, :whole].unflatten(1, (-1, _SUMS)).sum(1, dtype=kind)
    summed[:, : flat.shape[1] - whole] += flat[:, whole:]
    return torch.cat([norms[:, None], summed], 1)
