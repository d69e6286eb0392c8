"""A check of two backwards: the second must bring what the first did, reweighted by record."""

from __future__ import annotations

import torch
from torch import Tensor

from dpft.privacy.clipping.calls import Call

# Sums over a row that are compared beside its norm: a prime number of them, so that none is over a
# whole dimension of a layer, where softmax and norm layers make gradients cancel.
_SUMS = 61


class Reweighted:
    """Whether a second backward brings the output gradients of the first, reweighted.

    It does where the backward is linear. A hook that clamps gradients is not, nor is a model whose
    rows are in another order inside: the norms would be of other gradients than the sum.

    Args:
        share: of a row's norm, what rounding may change of it.
        sums: whether sums over parts of a row are compared beside its norm. They are linear: of
            another record's gradient a share ``s`` shows in them as ``s``, in a norm it may as
            ``s^2``. For weights that are powers of two, with which nothing is rounded otherwise.
    """

    # What rounding may change as a share of a row's norm at the call where it is largest: what is
    # zero but for rounding, as behind a softmax, is other rounding then.
    _ANYWHERE = 1e-5

    def __init__(self, share: float = 1e-2, sums: bool = False) -> None:
        self._share = share
        self._sums = sums
        self._seen: dict[int, Tensor] = {}
        self._scales = self._allowed = torch.empty(0)
        self._excess: list[Tensor] = []
        self._names: list[str] = []

    def first(self, call: Call, g: Tensor) -> None:
        """Note norms, and sums, of ``g``'s rows: ``(B, 1 + n)``."""
        self._seen[id(call)] = self._numbers(g)

    def by(self, scales: Tensor) -> None:
        """What the second backward multiplies each row with, ``(B,)``."""
        self._scales = scales
        largest = torch.zeros_like(scales)
        for numbers in self._seen.values():
            norms = numbers[:, 0].to(largest)
            largest = torch.maximum(largest, norms.masked_fill(~norms.isfinite(), 0.0))
        self._allowed = self._ANYWHERE * scales * largest

    def second(self, call: Call, g: Tensor) -> None:
        """Compare; what came of it is read in `holds`, since to read it makes a GPU halt."""
        numbers = self._seen.pop(id(call), None)
        if numbers is None:
            return
        expected = numbers * self._scales.to(numbers)[:, None]
        norms = expected[:, 0]
        allowed = self._share * norms + self._allowed.to(numbers)
        excess = (self._numbers(g) - expected).abs().amax(1) - allowed
        # A record whose loss is not finite is dropped, wherever its rows are.
        self._excess.append(excess.masked_fill(~norms.isfinite(), -1.0).max())
        self._names.append(next(iter(call.site.names.values())))

    def holds(self) -> Tensor:
        """Whether all agreed, a bool without dimensions."""
        return self._fine().all()

    def disagreeing(self) -> str | None:
        """A parameter of the first call of the backward that did not agree; None: all did."""
        pairs = zip(self._names, self._fine().tolist(), strict=True)
        return next((name for name, good in pairs if not good), None)

    def _fine(self) -> Tensor:
        """Of every call that was compared, whether it agreed, bool ``(n,)``."""
        if not self._excess:
            return self._scales.new_ones(0, dtype=torch.bool)
        return torch.stack([excess.to(self._excess[0].device) for excess in self._excess]) <= 0

    def _numbers(self, g: Tensor) -> Tensor:
        return _numbers(g.detach().flatten(1), self._sums)


class Again:
    """Whether a second backward computes the inputs of layers again as the first had them.

    Activation checkpointing does, unless a layer before draws other random numbers then.
    """

    _SHARE = 1e-3  # of a row's norm: kernels may round otherwise

    def __init__(self) -> None:
        self._seen: dict[int, list[Tensor]] = {}
        self._excess: list[Tensor] = []

    def first(self, call: Call) -> None:
        """Note norms and sums of the inputs' rows, which are at hand."""
        self._seen[id(call)] = self._of(call)

    def second(self, call: Call) -> None:
        """Compare; what came of it is read in `holds`."""
        for before, now in zip(self._seen.pop(id(call), []), self._of(call), strict=False):
            excess = (now - before).abs().amax(1) - self._SHARE * before[:, 0]
            self._excess.append(excess.masked_fill(~before[:, 0].isfinite(), -1.0).max())

    def holds(self) -> Tensor | None:
        """Whether all agreed, a bool without dimensions; None: nothing was compared."""
        if not self._excess:
            return None
        return (torch.stack([one.to(self._excess[0].device) for one in self._excess]) <= 0).all()

    def _of(self, call: Call) -> list[Tensor]:
        rows = (x.flatten(1) if x.dim() > 1 else x.reshape(-1, 1) for x in call.inputs())
        return [_numbers(x, sums=True) for x in rows if x.is_floating_point() and x.numel()]


def _numbers(flat: Tensor, sums: bool) -> Tensor:
    """Of rows ``(B, n)`` their norms, and sums over parts: ``(B, 1)`` or ``(B, 1 + n)``."""
    norms: Tensor = torch.linalg.vector_norm(flat, dim=1)
    return torch.cat([norms[:, None], _sums(flat)], 1) if sums else norms[:, None]


def _sums(flat: Tensor) -> Tensor:
    """Of each row ``(B, n)`` the sums of every 61st number, ``(B, min(n, 61))``."""
    kind = torch.promote_types(flat.dtype, torch.float32)
    whole = flat.shape[1] // _SUMS * _SUMS
    if not whole:
        return flat.to(kind)
    sums: Tensor = flat[:, :whole].unflatten(1, (-1, _SUMS)).sum(1, dtype=kind)
    sums[:, : flat.shape[1] - whole] += flat[:, whole:]
    return sums
