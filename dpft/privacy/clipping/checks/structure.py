"""What the autograd graph of a batch says: whether every use of every parameter was captured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from dpft.privacy.clipping.calls import Call, variable_of
from dpft.privacy.clipping.checks.layout import (
    is_token_losses,
    output_metadata,
    row_permuting_nodes,
)
from dpft.privacy.clipping.rules import UnsupportedLayerError


class Structure(NamedTuple):
    """What the autograd graph of a batch says about its layer calls.

    Attributes:
        reached: the calls that the losses depend on, in order.
        other_leaves: where the graph ends in something else than parameters (inputs that require
            gradients): a layer above is not reached by a backward to the roots alone.
        halved: whether anything on the way to the losses is in half precision: frozen layers, what
            lies between layers and the losses themselves round gradients as much as a trained
            layer does, though its own ``a`` and ``g`` may be in float32.
        row_permuting_nodes: functions that may give the records of the batch another order.
    """

    reached: list[Call]
    other_leaves: list[Tensor]
    halved: bool
    row_permuting_nodes: list[Node]


def verify_uses(
    losses: Tensor,
    calls: Sequence[Call],
    parameters: Mapping[str, Tensor],
    hidden: Collection[str] = (),
    reasons: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Structure:
    """Check against the autograd graph that every use of every parameter was captured.

    A weight used outside its layer's ``forward`` (``F.linear(x, self.embedding.weight)``) is
    invisible to hooks and would be left out of norm and sum. Its edges in the graph are not. Every
    batch is checked: a walk through the graph costs little beside a backward.

    Raises:
        UnsupportedLayerError: naming a parameter with a use that was not captured, or ``hidden``
            layers that a function of the graph may run again.
    """
    uses, nodes, other_leaves = _walk(losses, parameters)
    # Reversible blocks and reentrant checkpoints may run layers in a backward of their own: their
    # gradients would go to ``.grad`` unclipped, or nowhere.
    function: type = torch.autograd.function.BackwardCFunction
    for node in nodes if hidden else ():
        if isinstance(node, function) and not is_token_losses(node):
            raise UnsupportedLayerError(
                f"layers {', '.join(sorted(hidden)[:4])} ran with gradients disabled, and the "
                f"losses depend on a function with a backward of its own ({node.name()}), which "
                "may run them again where nothing is clipped; expected layers that run once. "
                "Checkpoint with use_reentrant=False; reversible models have no clipping rule"
            )
    names = {id(parameter): name for name, parameter in parameters.items()}
    reached = []
    expected: Counter[str] = Counter()
    for call in calls:
        places = [i for i, edge in enumerate(call.outputs) if edge.node in nodes]
        call.awaited = frozenset(places)
        if places:
            reached.append(call)
            expected.update(call.uses(names))
    for name in parameters:
        count = expected[name]
        if uses[name] != count:
            why = "; ".join(dict.fromkeys(reasons.get(name, ())))
            around = f", or of a module around it: {why}" if why else ""
            raise UnsupportedLayerError(
                f"parameter {name!r} is used {uses[name]} times in the computation of the "
                f"losses, but {count} of these uses went through its layer's forward; expected "
                "every use to be a call of the layer since the last backward, so that it can be "
                f"clipped{around}. Freeze the parameter (requires_grad_(False)), call the layer "
                "instead of its weight, and do not change its output in place"
            )
    halved = any(
        one.dtype.is_floating_point and one.dtype.itemsize < 4
        for node in nodes
        for one in output_metadata(node)
    )
    ends = {(c.outputs[i].node, c.outputs[i].output_nr) for c in reached for i in c.awaited}
    if any(call.automatic is not None for call in reached):
        # What a call is given may depend on a parameter that an automatic call around it covers.
        for call in reached:
            call.root = not all(_comes_after(call.outputs[i].node, ends) for i in call.awaited)
    outputs = [call.outputs[i] for call in reached for i in call.awaited]
    permuting = row_permuting_nodes(losses, outputs)
    return Structure(reached, other_leaves, halved, permuting)


def _comes_after(node: Node, ends: Collection[tuple[Node, int]]) -> bool:
    """Return whether what a function gives depends on another of these outputs."""
    pending, seen = [node], {node}
    while pending:
        for source, number in pending.pop().next_functions:
            if (source, number) in ends:
                return True
            if source is not None and source not in seen:
                seen.add(source)
                pending.append(source)
    return False


def dominates(call: Call, losses: Tensor, others: Sequence[Call]) -> bool:
    """Return whether the losses depend on ``others`` and parameters through ``call`` alone.

    Only asked of a call with one row for each of the model's batch, and one output.
    """
    if call.automatic is not None or call.positions > 1:
        return False
    calls = {id(edge.node) for other in others for edge in other.outputs}
    output = call.outputs[0]
    root = losses.grad_fn
    pending: list[Node] = [] if root is None else [root]
    seen: set[Node] = set(pending)
    while pending:
        for node, index in pending.pop().next_functions:
            if node is None or (node is output.node and index == output.output_nr):
                continue
            if hasattr(node, "variable") or id(node) in calls or node is output.node:
                return False
            if node not in seen:
                seen.add(node)
                pending.append(node)
    return output.node is not root


def _walk(
    losses: Tensor, parameters: Mapping[str, Tensor]
) -> tuple[dict[str, int], set[Node], list[Tensor]]:
    """Count edges of the losses' graph into each parameter's leaf, itself or through aliases.

    Also return the nodes of the graph, and its leaves that are no parameters.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    counts = dict.fromkeys(parameters, 0)
    other_leaves: dict[Node, Tensor] = {}
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
                    "given to make_clipper, frozen or not before that call, and none made in a "
                    "forward, as DoRA of peft makes one of a Conv1D: lora_dropout=0 there"
                )
            elif isinstance(leaf, Tensor):
                other_leaves[node] = leaf
            elif node not in seen:
                seen.add(node)
                pending.append(node)
    return counts, seen, list(other_leaves.values())
