"""Reading the autograd graph: which leaf a function stands for, and what it gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node

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
