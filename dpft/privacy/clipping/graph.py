"""Reading the autograd graph: which leaf a function stands for, and what it gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

# What gives a parameter in another layout or precision. Autocast keeps the rounded copy and double
# backward the transposed one: of several uses only the first has an edge to the parameter itself.
_ALIASES = frozenset({"TBackward0", "TransposeBackward0", "PermuteBackward0", "ToCopyBackward0"})


def variable_of(node: Node | None) -> Tensor | None:
    """The leaf that a node stands for, itself or through aliases."""
    while node is not None and node.name() in _ALIASES:
        node = node.next_functions[0][0]
    variable: Tensor | None = getattr(node, "variable", None)
    return variable


def output_metadata(node: Node) -> Sequence[Any]:
    """``shape`` and ``dtype`` of what a function gave, which its backward takes gradients of."""
    dynamic: Any = node
    metadata: Sequence[Any] = dynamic._input_metadata
    return metadata


class Between(NamedTuple):
    """What lies between the inputs and the outputs of a call.

    Attributes:
        counts: how often each parameter is used, by name.
        nodes: the functions.
    """

    counts: Counter[str]
    nodes: set[Node]


def uses_between(
    outputs: Iterable[GradientEdge], stops: Collection[tuple[Node, int]], names: Mapping[int, str]
) -> Between:
    """Walk from a call's outputs to its inputs.

    Args:
        outputs: where they lie in the graph.
        stops: where the inputs do.
        names: of the parameters, by `id`.
    """
    counts: Counter[str] = Counter()
    seen: set[Node] = set()
    pending = [(edge.node, edge.output_nr) for edge in outputs]
    while pending:
        node, number = pending.pop()
        if (node, number) in stops:
            continue
        name = names.get(id(variable_of(node)))
        if name is not None:
            counts[name] += 1
        elif node not in seen and not hasattr(node, "variable"):
            seen.add(node)
            pending += [(n, nr) for n, nr in node.next_functions if n is not None]
    return Between(counts, seen)
