"""Functions of the autograd graph that may give the rows of a batch another order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.autograd.graph import Node

from dpft.privacy.graph import given, variable_of

# By one index along a dimension, by several indices from the first on, along one dimension, along
# some, and whatever is asked of them.
_BY_INDEX = frozenset({"IndexSelectBackward0", "IndexAddBackward0", "IndexCopyBackward0"})
_BY_INDICES = frozenset({"IndexBackward0", "IndexPutBackward0"})
_BY_DIM = frozenset(
    {
        *("GatherBackward0", "ScatterBackward0", "ScatterAddBackward0", "ScatterReduceBackward0"),
        *("SortBackward0", "TopkBackward0", "CatBackward0", "StackBackward0"),
    }
)
_BY_DIMS = frozenset({"RollBackward0", "FlipBackward0"})
_ALWAYS = frozenset({"MaskedSelectBackward0", "MaskedScatterBackward0", "TakeBackward0"})


def movers(nodes: Collection[Node], batch: int) -> list[Node]:
    """Functions of a graph that may give its rows another order.

    Only one that gives ``batch`` rows can bring a layer as many rows as there are records in
    another order; other numbers are refused as they are. What moves positions within the records,
    and an index that is 0, 1, 2 and so on, moves no row.

    Args:
        nodes: of the graph.
        batch: rows of the model's batch.
    """
    return [node for node in nodes if _moves(node, batch)]


def _moves(node: Node, batch: int) -> bool:
    name = node.name()
    if name in _ALWAYS:
        return True
    found: Any = node
    if name == "EmbeddingBackward0":
        # A lookup in what the model has computed; a parameter's table is a leaf of the graph.
        return _gives(node, batch) and variable_of(node.next_functions[0][0]) is None
    if name in _BY_INDICES:
        # Without a first index (x[:, index]) rows stay where they are.
        return _gives(node, batch) and not _in_order(found._raw_saved_indices[:1], batch)
    if name in _BY_INDEX:
        if not _gives(node, batch) or not _has_first(node, [found._saved_dim]):
            return False
        return not _in_order([found._raw_saved_index], batch)
    if name in _BY_DIM:
        return _gives(node, batch) and _has_first(node, [found._saved_dim])
    if name in _BY_DIMS:  # none: of all numbers in a row
        dims = found._saved_dims
        return _gives(node, batch) and (not dims or _has_first(node, dims))
    return False


def _gives(node: Node, batch: int) -> bool:
    shape = given(node)[0].shape
    return len(shape) > 0 and int(shape[0]) == batch


def _has_first(node: Node, dims: Sequence[int]) -> bool:
    """Whether one of the dimensions is the first; those below zero are saved as unsigned."""
    count = len(given(node)[0].shape)
    return any((dim - 2**64 if dim >= 2**63 else dim) % count == 0 for dim in dims)


def _in_order(saved: Sequence[Any], batch: int) -> bool:
    """Whether an index takes row i of record i, as far as that can be told.

    What a hook has packed (a checkpoint, an offload) is not unpacked here: that may be done once.
    """
    if not saved:
        return True
    one = saved[0]
    if one.unpack_hook is not None:
        return False
    index = one.unpack()
    if index is None:
        return True
    if index.dtype in (torch.bool, torch.uint8) or index.dim() == 0 or len(index) != batch:
        return False
    steps = torch.arange(batch, device=index.device).view(-1, *[1] * (index.dim() - 1))
    return bool((index == steps).all())
