"""The places of a batch's records in a tensor, as each function of autograd carries them on.

A tensor is read in row-major order, whatever its shape: the number at position ``i`` belongs to
record ``i // inner % batch``, with ``inner = numel / (outer * batch)``. One integer, ``outer``,
then says where the records are: 1 for ``(B, T, d)`` and for ``(B*T, d)``, ``T`` for ``(T, B, d)``.

A rule says where each dimension of an input goes. A dimension that a function sums, sorts, gathers
or multiplies over goes nowhere. Records on such a dimension may change places, in this
batch or another one: `row_permuting_nodes` returns such functions, and those that no rule knows.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from dpft.privacy.clipping.calls import is_token_losses, output_metadata

Shape = tuple[int, ...]
# Of each dimension of an input, the dimension of the result that it becomes, or None.
Axes = Sequence[int | None]
# From a function, the position of an input, its shape and the result's; None: not known.
Rule = Callable[[Any, int, Shape, Shape], Axes | None]


def row_permuting_nodes(losses: Tensor, outputs: Collection[GradientEdge]) -> list[Node]:
    """Return functions that may bring rows of a layer to the losses of other records.

    From the leaves to the losses each function is asked where the records are in its result.
    They come first in a layer's output, as its rule takes them to do, and in the losses.
    """
    root, batch = losses.grad_fn, len(losses)
    if root is None or batch < 2:
        return []
    # Where the records are, by function and output; others have nothing of a layer.
    carrying: dict[Any, int] = {(edge.node, edge.output_nr): 1 for edge in outputs}
    shapes: dict[tuple[Node | None, int], Shape] = {}
    permuting: dict[Node, None] = {}

    def place(node: Node, number: int) -> None:
        shape = shapes[node, number] = tuple(output_metadata(node)[number].shape)
        found = {
            _carried(node, position, carrying[edge], batch, shapes[edge], shape)
            for position, edge in enumerate(node.next_functions)
            if edge in carrying
        }
        outer = next(iter(found)) if len(found) == 1 else None
        ordered = (node, number) in carrying or node is root
        if found and (outer is None or (ordered and outer != 1)):
            permuting[node] = None
        if outer is not None:
            carrying.setdefault((node, number), outer)

    for node in _from_the_leaves(root):
        for edge in node.next_functions:
            source, number = edge
            if source is not None and not hasattr(source, "variable") and edge not in shapes:
                place(source, number)
    place(root, losses.output_nr)
    return list(permuting)


def _from_the_leaves(root: Node) -> list[Node]:
    """Return the functions of a graph, each after those that it depends on, without leaves."""
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


def _carried(
    node: Node, position: int, outer: int, batch: int, given: Shape, result: Shape
) -> int | None:
    """Return ``outer`` of what a function gives, from that of one of its inputs.

    None unless it is certain that each record's numbers follow from this input's of that record.
    """
    name = _function(node.name())
    rule = _token_losses if is_token_losses(node) else RULES.get(name)
    if given == result and (rule is _aligned or _passes_on(node, name)):
        return outer
    if name in _RESHAPES:
        return outer if math.prod(given) == math.prod(result) else None
    if name == "Index" and outer == 1 and given[:1] == result[:1] == (batch,) and _in_order(node):
        return outer
    axes = rule(node, position, given, result) if rule is not None else None
    return None if axes is None else _moved(outer, batch, given, axes, result)


def _moved(outer: int, batch: int, given: Shape, axes: Axes, result: Shape) -> int | None:
    """Return ``outer`` after dimensions went to ``axes``; None if records are torn apart."""
    before = after = upto = 1
    kept: list[int] = []
    for place, size in zip(axes, given, strict=True):
        if size > 1 and upto * size > outer and upto < outer * batch:
            if place is None or result[place] != size or (kept and place < kept[-1]):
                return None
            before = before if kept else upto
            kept.append(place)
        if upto < outer * batch:
            after = upto * size
        upto *= size
    if not kept or outer % before or after % (outer * batch):
        return None
    if any(result[place] > 1 and place not in kept for place in range(kept[0], kept[-1])):
        return None
    return math.prod(result[: kept[0]]) * (outer // before)


@lru_cache
def _function(name: str) -> str:
    """Return ``Add`` of ``AddBackward0``."""
    found = re.fullmatch(r"(\w+?)Backward\d+", name)
    return found[1] if found else name


def _passes_on(node: Node, name: str) -> bool:
    """Return whether it is FSDP2's function that gives its inputs as they are, each in its place.

    Any library may have a function of that name: this one is known by its module.
    """
    module: str = getattr(getattr(type(node), "_forward_cls", None), "__module__", "")
    known = name == "RegisterPostBackwardFunctionBackward"
    return known and module.startswith("torch.distributed.fsdp.")


def _in_order(node: Any) -> bool:
    """Return whether an index takes row i of record i, as ``x[torch.arange(B), last]`` does.

    What a hook has packed (a checkpoint, an offload) is not unpacked here: that may be done once.
    """
    raw = node._raw_saved_indices
    if not raw or any(one.unpack_hook is not None for one in raw):
        return False
    first, *others = (one.unpack() for one in raw)
    if first is None or first.dtype in (torch.bool, torch.uint8):
        return False
    dims = max(x.dim() for x in (first, *others) if x is not None)
    steps = torch.arange(len(first), device=first.device).view(-1, *[1] * (dims - 1))
    return first.dim() == dims and bool((first == steps).all())


def _signed(dim: int) -> int:
    """Return a dimension as it was typed: those below zero are saved as unsigned."""
    return dim - 2**64 if dim >= 2**63 else dim


def _dims(node: Node) -> list[int]:
    """Return the dimensions that a function works along; none where it works along all."""
    saved: Any = getattr(node, "_saved_dim", getattr(node, "_saved_dims", None))
    return [_signed(dim) for dim in ([saved] if isinstance(saved, int) else saved or [])]


def _aligned(node: Any, position: int, given: Shape, result: Shape) -> Axes | None:
    """Carry on what works number by number, with broadcasting."""
    shift = len(result) - len(given)
    return None if shift < 0 else range(shift, len(result))


def _along(node: Any, position: int, given: Shape, result: Shape) -> Axes | None:
    """Carry on what works along dimensions, which may be gone afterwards."""
    worked = {dim % max(1, len(given)) for dim in _dims(node)}
    left = [axis for axis in range(len(given)) if axis not in worked]
    if not worked or len(result) not in (len(given), len(left)):
        return None
    places = left if len(result) == len(given) else range(len(left))
    goes = dict(zip(left, places, strict=True))
    return [goes.get(axis) for axis in range(len(given))]


def _part(node: Any, position: int, given: Shape, result: Shape) -> Axes | None:
    """Carry on what picks a part along a dimension, unless it is the whole."""
    return range(len(given)) if given == result else _along(node, position, given, result)


def _stack(node: Any, position: int, given: Shape, result: Shape) -> Axes | None:
    (dim,) = _dims(node) or [0]
    return [axis + (axis >= dim % len(result)) for axis in range(len(given))]


def _permute(node: Any, position: int, given: Shape, result: Shape) -> Axes | None:
    order = [dim % len(given) for dim in _dims(node)]
    return [order.index(axis) for axis in range(len(given))]


def _transpose(node: Any, position: int, given: Shape, result: Shape) -> Axes | None:
    axes = list(range(len(given)))
    i, j = (_signed(dim) % max(1, len(axes)) for dim in (node._saved_dim0, node._saved_dim1))
    if axes:
        axes[i], axes[j] = axes[j], axes[i]
    return axes


def _product(*by_position: Axes) -> Rule:
    """Return the rule of a product, from where each factor's dimensions go; others are added."""

    def rule(node: Any, position: int, given: Shape, result: Shape) -> Axes | None:
        first = len(node.next_functions) - len(by_position)
        if position < first:
            return _aligned(node, position, given, result)
        return by_position[position - first]

    return rule


def _by_first(node: Any, position: int, given: Shape, result: Shape) -> Axes | None:
    """Carry on what treats each entry of the first dimension by itself; others are weights."""
    return None if position else [0, *[None] * (len(given) - 1)]


def _layer_norm(node: Any, position: int, given: Shape, result: Shape) -> Axes | None:
    kept = len(given) - len(node._saved_normalized_shape)
    return None if position else [axis if axis < kept else None for axis in range(len(given))]


def _loss(node: Any, position: int, given: Shape, result: Shape) -> Axes | None:
    """Carry on losses of logits ``(B, V, ...)``; a sum or mean over records is no loss."""
    return [0, None, *range(1, len(given) - 1)] if len(result) == len(given) - 1 else None


def _token_losses(node: Any, position: int, given: Shape, result: Shape) -> Axes | None:
    return [0, 1, None]


def _attention(node: Any, position: int, given: Shape, result: Shape) -> Axes | None:
    """Carry on queries, keys, values and masks, which are multiplied over the last dimensions."""
    shift = len(result) - len(given)
    return None if shift < 0 else [*range(shift, len(result) - 2), None, None]


_RESHAPES = frozenset(
    {"View", "UnsafeView", "ReshapeAlias", "Alias", "Unsqueeze", "Squeeze", "Clone", "ToCopy"}
)
_NAMES: Mapping[Rule, str] = {
    _aligned: "Add Sub Rsub Mul Div Neg Pow Exp Exp2 Expm1 Log Log2 Log1P Logaddexp Sqrt Rsqrt "
    "Reciprocal Abs Sin Cos Tanh Sigmoid LogSigmoid Erf Gelu Relu Silu Mish Elu LeakyRelu "
    "Hardtanh Hardswish Hardsigmoid Softplus Threshold Clamp ClampMin ClampMax Maximum Minimum "
    "Where MaskedFill Lerp Addcmul Addcdiv NativeDropout Expand Repeat "
    "BinaryCrossEntropyWithLogits MseLoss SmoothL1Loss HuberLoss",
    _along: "Sum Mean Prod Amax Amin Max Min Logsumexp Var Std LinalgVectorNorm Norm Cumsum "
    "Softmax SafeSoftmax LogSoftmax Glu Sort Topk Gather Scatter ScatterAdd ScatterReduce "
    "IndexSelect IndexAdd IndexCopy Roll Flip Cat Unbind Select",
    _part: "Slice Split SplitWithSizes",
    _by_first: "Convolution NativeGroupNorm MaxPool2DWithIndices AvgPool2D AdaptiveAvgPool2D",
    _attention: "ScaledDotProductFlashAttentionForCpu ScaledDotProductFlashAttention "
    "ScaledDotProductEfficientAttention ScaledDotProductCudnnAttention",
    _loss: "NllLoss NllLoss2D",
    _layer_norm: "NativeLayerNorm FusedRmsNorm",
    _permute: "Permute",
    _transpose: "Transpose",
    _stack: "Stack",
    _product([0, None], [None, 1]): "Mm Addmm",
    _product([0, 1, None], [0, None, 2]): "Bmm Baddbmm",
}
# What is not here may do anything.
RULES: Mapping[str, Rule] = MappingProxyType(
    {name: rule for rule, names in _NAMES.items() for name in names.split()}
)
