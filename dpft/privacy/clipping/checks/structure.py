"""What the autograd graph of a batch says: whether every use of every parameter was captured."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from dpft.privacy.clipping.calls import Call, Captured, uses_between
from dpft.privacy.clipping.checks.layout import (
    is_token_losses,
    output_metadata,
    row_permuting_nodes,
)
from dpft.privacy.clipping.rules import UnsupportedLayerError

Edge = tuple[Node, int]


class Structure(NamedTuple):
    """What the autograd graph of a batch says about its layer calls.

    Attributes:
        reached: the calls that the losses depend on, in order.
        leaves: the tensors that stand for the trained parameters in the graph, by name.
        other_leaves: where the graph ends in something else than parameters (inputs that require
            gradients): a layer above is not reached by a backward to the roots alone.
        halved: whether anything on the way to the losses is in half precision: frozen layers, what
            lies between layers and the losses themselves round gradients as much as a trained
            layer does, though its own ``a`` and ``g`` may be in float32.
        row_permuting_nodes: functions that may give the records of the batch another order.
    """

    reached: list[Call]
    leaves: Mapping[str, Tensor]
    other_leaves: list[Tensor]
    halved: bool
    row_permuting_nodes: list[Node]


def verify_uses(
    losses: Tensor,
    captured: Captured,
    leaves: Mapping[str, Tensor],
    reasons: Mapping[str, Sequence[str]],
) -> Structure:
    """Check against the autograd graph that every use of every parameter was captured.

    A weight used outside its layer's ``forward`` (``F.linear(x, self.embedding.weight)``) is
    invisible to hooks and would be left out of norm and sum. Its edges in the graph are not. Every
    batch is checked: a walk through the graph is cheap next to a backward. ``reasons`` say why
    uses of a parameter could not be captured.

    Raises:
        UnsupportedLayerError: naming a parameter with a use that was not captured, or hidden
            layers that a function of the graph may run again; if the losses depend on no layer.
    """
    names = {id(parameter): name for name, parameter in leaves.items()}
    roots = [] if losses.grad_fn is None else [get_gradient_edge(losses)]
    uses, nodes, others = uses_between(roots, (), names)
    for leaf in others:
        if isinstance(leaf, nn.Parameter):
            raise UnsupportedLayerError(
                f"a parameter of shape {tuple(leaf.shape)} that requires gradients takes part "
                "in the losses but is not the clipper's; expected all of them in the model "
                "given to make_clipper, frozen or not before that call, and none made in a "
                "forward, as DoRA of peft makes one of a Conv1D: lora_dropout=0 there"
            )
    # Reversible blocks and reentrant checkpoints may run layers in a backward of their own: their
    # gradients would go to ``.grad`` unclipped, or nowhere.
    function: type = torch.autograd.function.BackwardCFunction
    for node in nodes if captured.hidden else ():
        if isinstance(node, function) and not is_token_losses(node):
            raise UnsupportedLayerError(
                f"layers {', '.join(sorted(captured.hidden)[:4])} ran with gradients disabled, and "
                f"the losses depend on a function with a backward of its own ({node.name()}), "
                "which may run them again where nothing is clipped; expected layers that run once. "
                "Checkpoint with use_reentrant=False; reversible models have no clipping rule"
            )
    reached = []
    expected: Counter[str] = Counter()
    for call in captured.calls:
        places = [i for i, edge in enumerate(call.outputs) if edge.node in nodes]
        call.awaited = frozenset(places)
        if places:
            reached.append(call)
            expected.update(call.uses(names))
    for name in leaves:
        if uses[name] != expected[name]:
            why = "; ".join(dict.fromkeys(reasons.get(name, ())))
            around = f", or of a module around it: {why}" if why else ""
            raise UnsupportedLayerError(
                f"parameter {name!r} is used {uses[name]} times in the computation of the "
                f"losses, but {expected[name]} of these uses went through its layer's forward; "
                "expected every use to be a call of the layer since the last backward, so that it "
                f"can be clipped{around}. Freeze the parameter (requires_grad_(False)), call the "
                "layer instead of its weight, and do not change its output in place"
            )
    if not reached:
        raise UnsupportedLayerError(
            "the losses do not depend on any trainable layer that was called; expected losses "
            "of this forward, neither detached nor constant"
        )
    halved = any(
        one.dtype.is_floating_point and one.dtype.itemsize < 4
        for node in nodes
        for one in output_metadata(node)
    )
    outputs = [call.outputs[i] for call in reached for i in call.awaited]
    if any(call.automatic is not None for call in reached):
        # What a call is given may depend on a parameter that an automatic call around it covers.
        ends = {(edge.node, edge.output_nr) for edge in outputs}
        for call in reached:
            call.root = not all(
                any(edge in ends for edge in _edges_below(call.outputs[i].node))
                for i in call.awaited
            )
    permuting = row_permuting_nodes(losses, outputs)
    return Structure(reached, leaves, others, halved, permuting)


def dominates(call: Call, losses: Tensor, others: Sequence[Call]) -> bool:
    """Return whether the losses depend on ``others`` and parameters through ``call`` alone.

    Only asked of a call with one row for each of the model's batch, and one output.
    """
    (output, *_), root = call.outputs, losses.grad_fn
    if call.automatic is not None or call.positions > 1 or root is None or root is output.node:
        return False
    known = {edge.node for other in (call, *others) for edge in other.outputs}
    above = _edges_below(root, {(output.node, output.output_nr)})
    return not any(hasattr(node, "variable") or node in known for node, _ in above)


def _edges_below(root: Node, stops: Collection[Edge] = ()) -> Iterator[Edge]:
    """Go through what a function depends on, as far as ``stops``, which are left out."""
    pending, seen = [root], {root}
    while pending:
        for node, number in pending.pop().next_functions:
            if node is None or (node, number) in stops:
                continue
            yield node, number
            if node not in seen:
                seen.add(node)
                pending.append(node)
