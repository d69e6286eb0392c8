"""The check that a backward of reweighted losses brings reweighted gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dpft.privacy.clipping.calls import Call

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
