"""Checks that what was captured is all there is, and that the rules say the truth about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from dpft.privacy.clipping.capture import Call
from dpft.privacy.clipping.checks.graph import given, variable_of
from dpft.privacy.clipping.checks.moves import movers
from dpft.privacy.clipping.rules import UnsupportedLayerError, Use

# Of the model's gradients, how large a share is held at a time by `RuleSums`.
_PARTS = 4


class Structure(NamedTuple):
    """What the autograd graph of a batch says about its layer calls.

    Attributes:
        reached: the calls that the losses depend on, in order.
        everywhere: whether the graph ends in other leaves than parameters (inputs that require
            gradients): a layer above them is not reached by a backward to the roots alone.
        halved: whether anything on the way to the losses is in half precision: frozen layers, what
            lies between layers and the losses themselves round gradients as much as a trained
            layer does, though its own ``a`` and ``g`` may be in float32.
        moving: functions that may give the records of the batch another order.
    """

    reached: list[Call]
    everywhere: bool
    halved: bool
    moving: list[Node]


def verify_uses(
    losses: Tensor,
    calls: Sequence[Call],
    parameters: Mapping[str, nn.Parameter],
    hidden: Collection[str] = (),
) -> Structure:
    """Check against the autograd graph that every use of every parameter was captured.

    A weight used outside its layer's ``forward`` (``F.linear(x, self.embedding.weight)``) is
    invisible to hooks and would be left out of norm and sum. Its edges in the graph are not. Every
    batch is checked: a walk through the graph costs little beside a backward.

    Args:
        losses: per-example losses, ``(B,)``.
        calls: all captured calls.
        parameters: the trainable parameters.
        hidden: names of layers that ran with gradients disabled.

    Raises:
        UnsupportedLayerError: naming a parameter with a use that was not captured, or ``hidden``
            layers that a function of the graph may run again.
    """
    found, nodes, everywhere = _walk(losses, parameters)
    if hidden:
        _check_hidden(hidden, nodes)
    reached = [call for call in calls if call.output.node in nodes]
    expected = dict.fromkeys(parameters, 0)
    for call in reached:
        for name in call.site.names.values():
            expected[name] += 1
    for name, count in expected.items():
        if found[name] != count:
            raise UnsupportedLayerError(
                f"parameter {name!r} is used {found[name]} times in the computation of the "
                f"losses, but {count} of these uses went through its layer's forward; expected "
                "every use to be a call of the layer since the last backward, so that it can be "
                "clipped. Freeze the parameter (requires_grad_(False)), call the layer instead of "
                "its weight, and do not change its output in place"
            )
    halved = any(map(_halved, nodes))
    return Structure(reached, everywhere, halved, movers(losses, [call.output for call in reached]))


def _halved(node: Node) -> bool:
    """Whether a function of the graph gives a result in half precision."""
    return any(one.dtype.is_floating_point and one.dtype.itemsize < 4 for one in given(node))


def _check_hidden(hidden: Collection[str], nodes: Iterable[Node]) -> None:
    """Refuse functions that may run layers in a backward of their own.

    Reversible blocks and reentrant checkpoints do: their layers' gradients would go to ``.grad``
    unclipped, or nowhere.
    """
    function: type = torch.autograd.function.BackwardCFunction
    for node in nodes:
        if isinstance(node, function):
            raise UnsupportedLayerError(
                f"layers {', '.join(sorted(hidden)[:4])} ran with gradients disabled, and the "
                f"losses depend on a function with a backward of its own ({node.name()}), which "
                "may run them again where nothing is clipped; expected layers that run once. "
                "Checkpoint with use_reentrant=False; reversible models have no clipping rule"
            )


def dominates(call: Call, losses: Tensor, others: Sequence[Call]) -> bool:
    """Whether the losses depend on parameters and on ``others`` through ``call``'s output alone."""
    calls = {id(other.output.node) for other in others}
    root = losses.grad_fn
    pending: list[Node] = [] if root is None else [root]
    seen: set[Node] = set(pending)
    while pending:
        for node, index in pending.pop().next_functions:
            if node is None or (node is call.output.node and index == call.output.output_nr):
                continue
            if hasattr(node, "variable") or id(node) in calls or node is call.output.node:
                return False
            if node not in seen:
                seen.add(node)
                pending.append(node)
    return call.output.node is not root


class Verified(NamedTuple):
    """What a comparison with autograd has shown.

    Attributes:
        told_apart: whether every gradient was large enough that a wrong rule would have shown. One
            that is zero or nearly so (a layer after one that was initialised with zeros) is what
            any rule gives.
        finite: whether all could be compared.
    """

    told_apart: bool
    finite: bool


class RuleSums:
    """Check, by an ordinary backward, that the rules tell the records apart rightly.

    With random weights on the losses, the rules' weighted sums must be autograd's gradients.
    They are not where a layer computes something else than its rule says, where an input was
    changed in place after the call, where rows and losses are in different order, or where a
    use was missed.

    Args:
        losses: per-example losses of some records, ``(n,)``.
        parameters: the trainable parameters.
        groups: names of the parameters that are clipped together. Beside a large gradient of its
            own group a small one hardly counts; one that is alone in its group is scaled up to
            its own threshold, however small it is.
    """

    def __init__(
        self,
        losses: Tensor,
        parameters: Mapping[str, nn.Parameter],
        groups: Sequence[Sequence[str]],
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        weights = 0.5 + torch.rand(len(losses), generator=generator, dtype=torch.float64)
        self._weights = weights.to(losses.device, torch.promote_types(losses.dtype, torch.float32))
        self._losses = losses
        self._parameters = parameters
        self._groups = groups
        self._held: dict[str, list[Use]] = {}
        self._sums: dict[str, Tensor] = {}
        self._terms: dict[str, float] = {}

    def add(self, name: str, use: Use, size: int, half: bool = False) -> None:
        """Take in a use of a parameter by these records.

        Args:
            name: of the parameter.
            use: of the ``n`` records alone.
            size: how many numbers ``use`` keeps alive; if more than its sum has, it is summed now.
            half: whether gradients were rounded to half precision on their way to the layer.
        """
        if half:
            # Autograd rounds each record's gradient anew once it has its weight: where records
            # cancel, as of a head's bias, the error is a share of what they had before.
            norms = use.squared_norm().value.clamp(min=0).sqrt().double()
            terms = float((norms * self._weights.to(norms)).sum())
            self._terms[name] = self._terms.get(name, 0.0) + terms
        if size < self._parameters[name].numel():
            self._held.setdefault(name, []).append(use)
        else:
            self._add_to(self._sum(name), use)

    def verify(self, tolerance: float, rounding: float) -> Verified:
        """Compare with autograd.

        Args:
            tolerance: relative difference that rounding explains, of a gradient's norm; of what
                the records had together before they cancelled, where `add` was told of half
                precision.
            rounding: of the largest gradient, what arithmetic may leave of one that is zero.

        Raises:
            UnsupportedLayerError: naming a parameter whose rule gives another gradient.
        """
        norms: dict[str, float] = {}
        apart: dict[str, float] = {}

        @torch.no_grad()
        def compare(name: str, theirs: Tensor | None) -> None:
            ours = self._sum(name)
            del self._sums[name]
            for use in self._held.pop(name, []):
                self._add_to(ours, use)
            norms[name] = 0.0 if theirs is None else float(theirs.norm())
            apart[name] = float((ours if theirs is None else ours.sub_(theirs)).norm())

        _each_gradient((self._losses * self._weights).sum(), self._parameters, compare)
        taking_part = tuple(norms)
        for name in self._parameters:
            if name not in norms:
                compare(name, None)
        # Where some record's gradient overflows, it will be dropped; the others are compared.
        finite = {name for name, norm in norms.items() if math.isfinite(norm)}
        largest = max((norms[name] for name in finite), default=0.0)
        of_group = {
            name: max((norms[other] for other in group if other in finite), default=0.0)
            for group in self._groups
            for name in group
        }
        for name in apart:
            if name not in finite:
                continue
            # A gradient that is zero but for rounding is measured against larger ones.
            terms = self._terms.get(name, 0.0)
            terms = terms if math.isfinite(terms) else 0.0
            allowed = tolerance * max(norms[name], terms)
            allowed += 1e-2 * tolerance * of_group[name] + rounding * largest
            difference = apart[name]
            if not difference <= allowed:
                raise UnsupportedLayerError(
                    f"the rule for parameter {name!r} gives another gradient than autograd "
                    f"(difference {difference:.3g}, expected at most {allowed:.3g}): its layer "
                    "computes something else than its type says, its input was changed in "
                    "place, or the losses are not in the order of the input's rows"
                )
        told_apart = all(
            norms[name] > 0.1 * tolerance * of_group[name] + 10 * rounding * largest
            for name in taking_part
            if name in finite
        )
        return Verified(told_apart, len(finite) == len(norms))

    def _sum(self, name: str) -> Tensor:
        if name not in self._sums:
            self._sums[name] = torch.zeros_like(self._parameters[name])
        return self._sums[name]

    def _add_to(self, total: Tensor, use: Use) -> None:
        use.add_weighted_sum(self._weights.to(total.device, total.dtype), total)


def _each_gradient(
    loss: Tensor,
    parameters: Mapping[str, nn.Parameter],
    compare: Callable[[str, Tensor], None],
) -> None:
    """Tell ``compare`` each parameter's gradient, a part of the model at a time.

    All gradients at once would be held beside all activations, as in no other batch. Accumulating
    them one by one would set off hooks that others left on the parameters.
    """
    most = sum(parameter.numel() for parameter in parameters.values()) / _PARTS
    part: list[str] = []
    size = 0
    names = list(parameters)
    for number, name in enumerate(names):
        part.append(name)
        size += parameters[name].numel()
        if number + 1 < len(names) and size + parameters[names[number + 1]].numel() <= most:
            continue
        gradients = torch.autograd.grad(
            loss, [parameters[n] for n in part], retain_graph=True, allow_unused=True
        )
        for n, gradient in zip(part, gradients, strict=True):
            if gradient is not None:
                compare(n, gradient)
        part, size = [], 0


def check_batch(call: Call, batch: int, g: Tensor) -> None:
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


def _walk(
    losses: Tensor, parameters: Mapping[str, nn.Parameter]
) -> tuple[dict[str, int], set[Node], bool]:
    """How often each parameter enters the computation of ``losses``: edges into its leaf node.

    An alias of a parameter counts as the parameter. Also the nodes of the graph, and whether any
    leaf is no parameter.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    counts = dict.fromkeys(parameters, 0)
    other_leaves = False
    root = losses.grad_fn
    pending: list[Node] = [] if root is None else [root]
    seen: set[Node] = set(pending)
    while pending:
        for node, _ in pending.pop().next_functions:
            if node is None:
                continue
            leaf = getattr(node, "variable", None)
            name = names.get(id(variable_of(node)))
            if name is not None:
                counts[name] += 1
            elif isinstance(leaf, nn.Parameter):
                raise UnsupportedLayerError(
                    f"a parameter of shape {tuple(leaf.shape)} that requires gradients takes part "
                    "in the losses but is not the clipper's; expected all of them in the model "
                    "given to make_clipper, and frozen or not before that call"
                )
            elif isinstance(leaf, Tensor):
                other_leaves = True
            elif node not in seen:
                seen.add(node)
                pending.append(node)
    return counts, seen, other_leaves
