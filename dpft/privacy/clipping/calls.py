"""One captured call of one layer, and what it adds to the gradients of the layer's parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from dpft.privacy.clipping.graph import uses_between
from dpft.privacy.clipping.rules import Rule, UnsupportedLayerError, Use
from dpft.privacy.clipping.rules.automatic import Recomputation
from dpft.privacy.clipping.sites import Site, check_joins

_BUILT_IN = "dpft.privacy."  # where the rules and uses are that dpft tests


class _Save(torch.autograd.Function):
    """Holds tensors as autograd does; takes no part in any computation."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return token.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise AssertionError("nothing is computed from this output")


def save_inputs(token: Tensor, *tensors: Tensor) -> Tensor:
    """Hold a call's inputs the way autograd saves tensors: what `Call` unpacks."""
    saved: Tensor = _Save.apply(token, *tensors)  # type: ignore[no-untyped-call]
    return saved


class Call:
    """One captured forward call of one layer.

    Attributes:
        site: the layer.
        outputs: where its outputs lie in the autograd graph: one, but for `automatic` calls.
        root: whether no other call comes before some output: a backward must name it as a target.
        leaves: the tensors that stood for the layer's parameters while it ran, by their canonical
            names, where those are not the parameters themselves (sharded ones).
        positions: rows of the layer's input for each row of the model's batch, next to each other.
        doubtful: whether the rows may not be of records: a call around it may take over.
        automatic: how to compute the call again, where its layer has no rule.
        stops: where inputs of an automatic call come from in the graph.
        compiled: whether it lies in a compiled block (`compiled`); ``outputs`` are tokens then.
        shown: of a compiled block, which uses of parameters the graph shows.
        constant: whether the block's parameters are constants of it, and no gradient of them can
            be asked of autograd.
        awaited: which outputs the losses depend on.
    """

    def __init__(
        self,
        site: Site,
        saved: Tensor | None,
        outputs: Sequence[GradientEdge],
        root: bool,
        leaves: Mapping[str, Tensor],
        *,
        positions: int = 1,
        doubtful: bool = False,
        automatic: Recomputation | None = None,
        stops: frozenset[tuple[Node, int]] = frozenset(),
        compiled: bool = False,
        shown: Collection[str] = (),
        constant: bool = False,
    ) -> None:
        self.site = site
        self.outputs = tuple(outputs)
        self.root = root
        self.leaves = leaves
        self.positions = positions
        self.doubtful = doubtful
        self.automatic = automatic
        self.stops = stops
        self.compiled = compiled
        self.shown = shown
        self.constant = constant
        self.awaited = frozenset(range(len(self.outputs)))
        self._saved = saved
        self._held: tuple[Tensor, ...] | None = None
        self._arrived: dict[int, Tensor] = {}

    def inputs(self) -> tuple[Tensor, ...]:
        """The layer's inputs, recomputed where it was checkpointed; none if nobody needs them.

        Of a layer with a rule it is the first one, ``(R, ...)`` with ``R`` rows of the model's
        batch: several rows for each of these become positions, ``(R, positions, ...)``.

        Raises:
            RuntimeError: if one was changed in place since the call.
        """
        if self._held is not None or self._saved is None:
            return self._held or ()
        node: Any = self._saved.grad_fn
        saved = tuple(x.detach() for x in node.saved_tensors)
        return saved if self.automatic is not None else tuple(map(self._by_record, saved))

    def input(self) -> Tensor | None:
        """The first of `inputs`, which is all that a layer with a rule has."""
        return next(iter(self.inputs()), None)

    def receive(self, number: int, g: Tensor) -> Tensor | None:
        """Take in an output's gradient.

        Returns:
            The call's ``g`` once all outputs have theirs; of an automatic call ``(R, n)``.
        """
        if self.automatic is None:
            return self._by_record(g)
        self._arrived[number] = g
        if not self.awaited.issubset(self._arrived):
            return None
        arrived, self._arrived = self._arrived, {}
        return self.automatic.joined(arrived)

    def uses(self, names: Mapping[int, str]) -> Counter[str]:
        """How often the call uses each of its parameters in what the losses depend on.

        Args:
            names: canonical names of the parameters, or of what stood for them, by `id`.
        """
        if self.compiled:
            return Counter(self.shown)
        if self.automatic is None:
            return Counter(self.site.names.values())
        edges = [self.outputs[i] for i in sorted(self.awaited)]
        found = uses_between(edges, self.stops, names).counts
        return Counter({name: found[name] for name in self.site.names.values()})

    def hold(self) -> None:
        """Unpack the inputs, which within one backward may be done once only, and keep them."""
        self._held = self.inputs()

    def let_go(self) -> None:
        """Undo `hold`: another backward may unpack the inputs again."""
        self._held = None

    def release(self) -> None:
        """Forget the inputs for good."""
        self._saved = self._held = None

    def _by_record(self, x: Tensor) -> Tensor:
        return x if self.positions == 1 else x.unflatten(0, (-1, self.positions))


class Captured(NamedTuple):
    """The layer calls of one forward, in order, and the layers that ran with gradients disabled."""

    calls: Sequence[Call]
    hidden: Collection[str]


def uses_of(call: Call, g: Tensor, batch: int, rows: int = 1) -> list[tuple[str, Use]]:
    """What one call adds to the gradients of its parameters, by their canonical names.

    Under autocast a layer multiplies in half precision: norms and sums are computed from the input
    as the layer rounded it, in the parameters' own precision unless the rule does otherwise
    (`halves`). Several rows of one record become
    further positions of it, over which every use sums.

    Args:
        call: the call.
        g: its output gradient.
        batch: ``B``.
        rows: of the model's batch for each record.
    """
    check_rows(call, batch * rows, g)
    if call.automatic is not None:
        return call.automatic.uses(call.site.names, call.inputs(), g, batch)
    a, g = rule_inputs(call, g, batch, rows)
    names = call.site.names
    uses = call.site.rule.uses(call.site.module, a, g)
    if uses.keys() != names.keys():
        module = type(call.site.module).__name__
        raise UnsupportedLayerError(
            f"layer {call.site.name!r} ({module}) trains {', '.join(names)}, but its rule gives "
            f"gradients of {', '.join(uses) or 'none'}; expected the same. Weight normalisation "
            "and pruning by hooks make a layer's weight of other parameters, for which there is "
            "no rule; torch.nn.utils.parametrizations has one of the former"
        )
    for local, use in uses.items():
        if not type(use).__module__.startswith(_BUILT_IN):
            raise UnsupportedLayerError(
                f"the rule for parameter {names[local]!r} gives a {type(use).__qualname__}; "
                "expected a MatrixUse, EmbeddingUse or DirectUse of dpft.privacy.clipping.rules, "
                "whose norms and sums are of one and the same gradients"
            )
    return [(names[local], use) for local, use in uses.items()]


def is_built_in(rule: Rule) -> bool:
    """Whether a rule is one of dpft's, and not somebody else's."""
    return type(rule).__module__.startswith(_BUILT_IN)


def rule_inputs(call: Call, g: Tensor, batch: int, rows: int) -> tuple[Tensor | None, Tensor]:
    """The layer's input and its output's gradient as its rule takes them, `B` records each."""
    a = call.input()
    if a is not None and a.is_floating_point() and a.dtype != g.dtype:
        a = a.to(g.dtype)
    keeps = g.dtype == torch.bfloat16 and call.site.rule.keeps_halves
    if g.dtype.itemsize < 4 and not keeps:
        g = g.float()
        a = a.float() if a is not None and a.is_floating_point() else a
    check_joins(call.site, rows)
    if rows > 1:
        g = g.unflatten(0, (batch, rows))
        a = None if a is None else a.unflatten(0, (batch, rows))
    return a, g


def check_rows(call: Call, batch: int, g: Tensor) -> None:
    """Check that a call's rows are the records of the losses.

    Raises:
        UnsupportedLayerError: for a lookup shared by the batch, or another number of rows.
    """
    site, a = call.site, call.input() if call.automatic is None else None
    shape = g.shape if a is None else a.shape
    positions_only = isinstance(site.module, nn.Embedding) and len(shape) < 2
    if positions_only or len(shape) == 0 or shape[0] != batch or len(g) != batch:
        raise UnsupportedLayerError(
            f"layer {site.name!r} ({type(site.module).__name__}) was called with an input of shape "
            f"{tuple(shape)} for {batch} losses; expected one row per record, shape "
            f"({batch}, ...). A lookup shared by the batch, such as positions, must be given as "
            "(B, T), or lie in a module without dropout, which can be computed again for each "
            "record: type model.dropout=0"
        )
