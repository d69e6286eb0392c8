"""Functions of the autograd graph that may give the records of a batch another order."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from dpft.privacy.clipping.checks.layout import Shape, carried
from dpft.privacy.clipping.graph import output_metadata


def row_permuting_nodes(losses: Tensor, outputs: Collection[GradientEdge]) -> list[Node]:
    """Functions that may bring rows of a layer to the losses of other records.

    From the leaves to the losses each function is asked where the records lie in what it gives
    (`layout`). A layer's output has record ``i`` in row ``i``, as its rule takes it to have, and so
    have the losses. Where that does not follow from the inputs, or a function is not known, it is
    returned: it may move rows, in this batch or another one.

    Args:
        losses: per-example losses, ``(B,)``.
        outputs: where the layers' outputs lie in the graph.
    """
    root, batch = losses.grad_fn, len(losses)
    if root is None or batch < 2:
        return []
    layers = {(edge.node, edge.output_nr) for edge in outputs}
    # By function and output: where its records lie; None where nothing in it is of a layer.
    places: dict[tuple[Node, int], int | None] = {}
    shapes: dict[tuple[Node, int], Shape] = {}
    permuting: dict[Node, None] = {}

    def place(node: Node, number: int) -> None:
        shape = shapes[node, number] = tuple(output_metadata(node)[number].shape)
        carries = {
            carried(node, position, outer, batch, shapes[source, nr], shape)
            for position, (source, nr) in enumerate(node.next_functions)
            if source is not None and (outer := places.get((source, nr))) is not None
        }
        here = next(iter(carries)) if len(carries) == 1 else None
        ordered = (node, number) in layers or node is root
        if (carries and here is None) or (ordered and here not in (None, 1)):
            permuting[node] = None
        places[node, number] = 1 if ordered else here

    for node in _from_the_leaves(root):
        for source, nr in node.next_functions:
            if source is None or hasattr(source, "variable") or (source, nr) in places:
                continue
            place(source, nr)
    place(root, losses.output_nr)
    return list(permuting)


def _from_the_leaves(root: Node) -> list[Node]:
    """The functions of a graph, each after those that it depends on; leaves are left out."""
    order: list[Node] = []
    seen = {root}
    pending = [(root, iter(root.next_functions))]
    while pending:
        node, sources = pending[-1]
        for source, _ in sources:
            if source is not None and source not in seen and not hasattr(source, "variable"):
                seen.add(source)
                pending.append((source, iter(source.next_functions)))
                break
        else:
            pending.pop()
            order.append(node)
    return order
