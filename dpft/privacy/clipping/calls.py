"""One captured call of one layer, and what it adds to the gradients of the layer's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from dpft.privacy.clipping.rules import UnsupportedLayerError, Use
from dpft.privacy.clipping.sites import Site, check_joins


class _Save(torch.autograd.Function):
    """Holds a tensor as autograd does; takes no part in any computation."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return token.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise AssertionError("nothing is computed from this output")


def save_input(token: Tensor, a: Tensor) -> Tensor:
    """Hold a layer's input the way autograd saves tensors: what `Call` unpacks."""
    saved: Tensor = _Save.apply(token, a)  # type: ignore[no-untyped-call]
    return saved


class Call:
    """One captured forward call of one layer.

    Attributes:
        site: the layer.
        output: where its output lies in the autograd graph.
        root: whether no trainable parameter comes before it: a backward must name it as a target.
        leaves: the tensors that stood for the layer's parameters while it ran, by their canonical
            names, where those are not the parameters themselves (sharded ones).
    """

    def __init__(
        self,
        site: Site,
        saved: Tensor | None,
        output: GradientEdge,
        root: bool,
        leaves: Mapping[str, Tensor],
    ) -> None:
        self.site = site
        self.output = output
        self.root = root
        self.leaves = leaves
        self._saved = saved
        self._held: Tensor | None = None

    def input(self) -> Tensor | None:
        """The layer's input, recomputed where it was checkpointed; None if nobody needs it.

        Raises:
            RuntimeError: if it was changed in place since the call.
        """
        if self._held is not None or self._saved is None:
            return self._held
        node: Any = self._saved.grad_fn
        saved: Tensor = node.saved_tensors[0]
        return saved.detach()

    def hold(self) -> None:
        """Unpack the input, which within one backward may be done once only, and keep it."""
        self._held = self.input()

    def let_go(self) -> None:
        """Undo `hold`: another backward may unpack the input again."""
        self._held = None

    def release(self) -> None:
        """Forget the input for good."""
        self._saved = self._held = None


def uses_of(call: Call, g: Tensor, batch: int, rows: int = 1) -> list[tuple[str, Use]]:
    """What one call adds to the gradients of its parameters, by their canonical names.

    Under autocast a layer multiplies in half precision: norms and sums are computed in the
    parameters' own, from the input as the layer rounded it. Several rows of one record become
    further positions of it, over which every use sums.
    """
    check_rows(call, batch * rows, g)
    a = call.input()
    if a is not None and a.is_floating_point() and a.dtype != g.dtype:
        a = a.to(g.dtype)
    if g.dtype.itemsize < 4:
        g = g.float()
        a = a.to(g.dtype) if a is not None and a.is_floating_point() else a
    check_joins(call.site, rows)
    if rows > 1:
        g = g.unflatten(0, (batch, rows))
        a = None if a is None else a.unflatten(0, (batch, rows))
    names = call.site.names
    uses = call.site.rule.uses(call.site.module, a, g)
    if uses.keys() != names.keys():
        module = type(call.site.module).__name__
        raise UnsupportedLayerError(
            f"layer {call.site.name!r} ({module}) trains {', '.join(names)}, but its rule gives "
            f"gradients of {', '.join(uses) or 'none'}; expected the same. Weight normalisation "
            "and pruning make a layer's weight of other parameters, for which there is no rule"
        )
    return [(names[local], use) for local, use in uses.items()]


def check_rows(call: Call, batch: int, g: Tensor) -> None:
    """Check that a call's rows are the records of the losses.

    Raises:
        UnsupportedLayerError: for a lookup shared by the batch, or another number of rows.
    """
    site, a = call.site, call.input()
    shape = g.shape if a is None else a.shape
    positions_only = isinstance(site.module, nn.Embedding) and len(shape) < 2
    if positions_only or len(shape) == 0 or shape[0] != batch or len(g) != batch:
        raise UnsupportedLayerError(
            f"layer {site.name!r} ({type(site.module).__name__}) was called with an input of shape "
            f"{tuple(shape)} for {batch} losses; expected one row per record, shape "
            f"({batch}, ...). A lookup shared by the batch, such as positions, must be given as "
            "(B, T)"
        )
