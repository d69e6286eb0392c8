"""A check of two backwards: the second must bring what the first did, reweighted by record."""

from __future__ import annotations

import torch
from torch import Tensor

from dpft.privacy.clipping.calls import Call


class Reweighted:
    """Whether a second backward brings the output gradients of the first, reweighted.

    It does where the backward is linear. A hook that clamps gradients is not, nor is a model whose
    rows are in another order inside: the norms would be of other gradients than the sum.
    """

    # What rounding may change: a share of a row's norm at this call, and of that at the call where
    # it is largest (what is zero but for rounding, as behind a softmax, is other rounding then).
    _HERE, _ANYWHERE = 1e-2, 1e-5

    def __init__(self) -> None:
        self._norms: dict[int, Tensor] = {}
        self._scales = self._allowed = torch.empty(0)
        self._excess: list[Tensor] = []

    def first(self, call: Call, g: Tensor) -> None:
        """Note the norms of ``g``'s rows, ``(B,)``."""
        self._norms[id(call)] = _row_norms(g)

    def by(self, scales: Tensor) -> None:
        """What the second backward multiplies each row with, ``(B,)``."""
        self._scales = scales
        largest = torch.zeros_like(scales)
        for norms in self._norms.values():
            largest = torch.maximum(largest, norms.to(largest))
        self._allowed = self._ANYWHERE * scales * largest

    def second(self, call: Call, g: Tensor) -> None:
        """Compare; what came of it is read in `holds`, since to read it makes a GPU halt."""
        norms = self._norms.pop(id(call), None)
        if norms is None:
            return
        expected = norms * self._scales.to(norms)
        allowed = self._HERE * expected + self._allowed.to(norms)
        excess = (_row_norms(g) - expected).abs() - allowed
        # A record whose loss is not finite is dropped, wherever its rows are.
        self._excess.append(excess.masked_fill(~expected.isfinite(), -1.0).max())

    def holds(self) -> Tensor:
        """Whether all agreed, a bool without dimensions."""
        if not self._excess:
            return self._scales.new_ones((), dtype=torch.bool)
        worst = [excess.to(self._excess[0].device) for excess in self._excess]
        return (torch.stack(worst) <= 0).all()


def _row_norms(g: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(g.detach().flatten(1), dim=1)
    return norms
