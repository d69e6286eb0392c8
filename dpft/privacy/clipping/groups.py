"""Clip functions, and partitions of the trainable parameters into clipping groups.

Each group has a threshold ``C_k``, and one record's gradient restricted to group ``k`` is clipped
to norm ``C_k``. One record therefore moves the released sum by at most ``sqrt(sum_k C_k^2)``.

How to group changes accuracy and memory, never the guarantee, as long as every trainable parameter
is in exactly one group (Bu et al. 2023, Remark 5.1). A tied parameter is one parameter: it belongs
where its first name is, and its uses are joined before the norm.

========== ===================================================================================
partition  one group for
========== ===================================================================================
flat       everything (Abadi et al. 2016; "all-layer" in Bu et al. 2023)
per_layer  each module that owns trainable parameters (He et al. 2022, section 3)
per_param  each parameter
block_wise each transformer or residual block (Bu et al. 2023, section 7)
uniform    ``count`` equal runs of blocks (Bu et al. 2023, section 5)
two_group  the first ``boundary`` blocks, and the rest (Bu et al. 2023, table 3)
by_type    each of linear, convolution, embedding, norm, other ("type-wise" in Bu et al. 2023)
per_device each device of a pipeline (He et al. 2022, section 4 and Algorithm 2)
custom     each tuple of ``patterns``
========== ===================================================================================
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor, nn

from dpft.privacy.spec import Partition, check_threshold

Parts = tuple[tuple[str, tuple[str, ...]], ...]  # (group name, parameter names)


def abadi(norms: Tensor, threshold: float) -> Tensor:
    """Return ``min(1, C/n)`` (Abadi et al. 2016): gradients shorter than ``C`` pass unchanged."""
    return (threshold / norms).clamp(max=1.0)


def automatic(norms: Tensor, threshold: float) -> Tensor:
    """Return ``C/(n + 0.01)`` (Bu et al. 2023, eq. 4 with ``C = 1``): no gradient exceeds ``C``."""
    return threshold / (norms + 0.01)


ClipFunction = Callable[[Tensor, float], Tensor]
"""Maps records' norms and a threshold to the factors that their gradients are multiplied with."""

CLIP_FUNCTIONS: Mapping[str, ClipFunction] = MappingProxyType(
    {"abadi": abadi, "automatic": automatic}
)
"""By the names in `dpft.privacy.spec.CLIP_FUNCTIONS`."""


@dataclass(frozen=True)
class Group:
    """Parameters that are clipped together, and the norm they are clipped to."""

    name: str
    parameters: tuple[str, ...]
    threshold: float

    def __post_init__(self) -> None:
        check_threshold(f"group {self.name!r}", self.threshold)


class OwnGroup(NamedTuple):
    """A group of a rule from elsewhere; its share of the squared threshold is relative."""

    name: str
    parameters: Sequence[str]
    share: float = 1.0


GroupRule = Callable[[nn.Module, tuple[str, ...]], Sequence[OwnGroup]]
"""Maps a model and the names of its trainable parameters to their groups."""


def own_partition(
    model: nn.Module, names: Iterable[str], rule: GroupRule
) -> tuple[Parts, tuple[float, ...]]:
    """Return groups by a rule from elsewhere, and which share of ``C`` each has: ``C_k / C``.

    In the model's order whatever the rule's: every process must come to the same.
    """
    names = tuple(names)
    groups = [OwnGroup(*group) for group in rule(model, names)]
    given = Counter(name for group in groups for name in group.parameters)
    if odd := [name for name in (*names, *given) if given[name] != 1 or name not in names]:
        raise ValueError(
            f"the groups of {getattr(rule, '__qualname__', rule)} do not partition the trainable "
            f"parameters ({_some(dict.fromkeys(odd))}); expected each of them in exactly one group"
        )
    if len({group.name for group in groups}) < len(groups) or not all(g.parameters for g in groups):
        raise ValueError(
            f"got groups {_some(f'{g.name} ({len(g.parameters)} parameters)' for g in groups)}; "
            "expected a different name for each, and no group without parameters"
        )
    if bad := [g for g in groups if not (g.share > 0 and math.isfinite(g.share))]:
        raise ValueError(f"group {bad[0].name!r} has share {bad[0].share}; expected a number > 0")
    ordered = [
        (g.name, tuple(sorted(g.parameters, key=names.index)), g.share)
        for g in sorted(groups, key=lambda group: min(map(names.index, group.parameters)))
    ]
    total = math.fsum(share for *_, share in ordered)
    parts = tuple((name, own) for name, own, _ in ordered)
    return parts, tuple(math.sqrt(share / total) for *_, share in ordered)


def partition(model: nn.Module, parameters: Mapping[str, nn.Parameter], how: Partition) -> Parts:
    """Put every trainable parameter into exactly one group.

    Groups are in the order of ``parameters``, as registered, with patterns in that of the patterns.
    A tied parameter appears once, under its first name. Raises ValueError for what does not fit.
    """
    if not parameters:
        raise ValueError("there is no trainable parameter to group; expected at least one")
    if how.patterns is not None:
        return _by_patterns(tuple(parameters), how.patterns, how.name)
    match how.name:
        case "flat":
            labels = ["all"] * len(parameters)
        case "per_layer":
            labels = [_owner(name) or "(root)" for name in parameters]
        case "per_param":
            labels = list(parameters)
        case "by_type":
            labels = [_type(model.get_submodule(_owner(name))) for name in parameters]
        case "per_device":
            labels = _by_device(model, parameters, how.count or 0)
        case _:
            labels = _by_blocks(model, parameters, how)
    groups: dict[str, list[str]] = {}
    for name, label in zip(parameters, labels, strict=True):
        groups.setdefault(label, []).append(name)
    return tuple((label, tuple(own)) for label, own in groups.items())


def assign(
    parts: Parts, threshold: float | None = None, thresholds: Sequence[float] | None = None
) -> tuple[Group, ...]:
    """Give each of ``K`` groups its threshold: ``C / sqrt(K)`` of one, or its own."""
    if (threshold is None) == (thresholds is None):
        got = "neither" if threshold is None else "both"
        raise ValueError(
            f"got {got} of threshold and thresholds; expected exactly one: threshold=0.1 for "
            "0.1 / sqrt(K) in each of K groups, or thresholds with one number for each group"
        )
    if thresholds is None:
        assert threshold is not None
        thresholds = [threshold / math.sqrt(len(parts))] * len(parts)
    if len(thresholds) != len(parts):
        names = _some(name for name, _ in parts)
        raise ValueError(
            f"got {len(thresholds)} thresholds for {len(parts)} groups ({names}); expected one for "
            "each group, or give threshold=0.1 to share it equally"
        )
    return tuple(Group(name, own, c) for (name, own), c in zip(parts, thresholds, strict=True))


def find_blocks(module: nn.Module, prefix: str = "") -> dict[str, nn.Module]:
    """Find the transformer or residual blocks of a model, by name, as registered.

    They are found by structure, under any wrapper. A module is composed if it holds at least two
    layers that multiply (have a weight of two or more dimensions). An ``nn.ModuleList`` or
    ``nn.Sequential`` whose composed members are mostly of one class is a stack, and these members
    are its blocks. A member that is not composed but for the blocks within it is a stage of a
    convolutional or hierarchical network, and a lone member with blocks is a wrapped model: their
    blocks count in their place. A block is not searched for more, so a mixture's experts stay
    within their block; an encoder's blocks and then a decoder's make one sequence.
    """
    members = [(f"{prefix}{name}", child) for name, child in module.named_children()]
    composed = {name: child for name, child in members if _multiplying(child) > 1}
    classes = Counter(type(child) for child in composed.values())
    is_list = isinstance(module, nn.ModuleList | nn.Sequential)
    stack = is_list and any(2 * n > len(composed) for n in classes.values())
    blocks: dict[str, nn.Module] = {}
    for name, child in members:
        within = find_blocks(child, f"{name}.")
        if stack and name in composed:
            outside = _multiplying(child) - sum(_multiplying(block) for block in within.values())
            wrapped = len(composed) == 1 and len(within) > 1
            blocks |= within if wrapped or outside < 2 else {name: child}
        else:
            blocks |= within
    return blocks


def _multiplying(module: nn.Module) -> int:
    """Count the modules within ``module`` that own a weight of two or more dimensions."""
    if isinstance(getattr(module, "base_layer", None), nn.Module):
        return 1  # an adapter around a layer, as peft builds it, counts as that layer
    own = any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
    return own + sum(_multiplying(child) for child in module.children())


def _by_blocks(model: nn.Module, names: Iterable[str], how: Partition) -> list[str]:
    """Label parameters by block."""
    block_of = _blocks_of(model, names)
    blocks = list(dict.fromkeys(block_of))  # that are trained
    n = len(blocks)
    if n == 0:
        raise ValueError(
            f"partition {how.name!r} needs blocks, and none with trainable parameters was found in "
            f"{type(model).__name__}; expected an nn.ModuleList or nn.Sequential of like modules: "
            "use per_layer, or custom with patterns"
        )
    if how.name == "two_group":
        key, most, sizes = "boundary", n - 1, [how.boundary or 0, n - (how.boundary or 0)]
    else:
        M = how.count or n
        key, most, sizes = "count", n, [n // M + (k < n % M) for k in range(min(M, n + 1))]
    if min(sizes) < 1:
        raise ValueError(
            f"{key} is {getattr(how, key)}; expected 1 to {most}, for {n} blocks were found: "
            + (f"{key}={most}" if most else "use flat")
        )
    titles = blocks
    if how.name != "block_wise":
        ends = itertools.accumulate(sizes)
        spans = [(end - size, end - 1) for size, end in zip(sizes, ends, strict=True)]
        titles = [f"blocks {i} to {j}" for i, j in spans for _ in range(i, j + 1)]
    title_of = dict(zip(blocks, titles, strict=True))
    return [title_of[block] for block in block_of]


def _blocks_of(model: nn.Module, names: Iterable[str]) -> list[str]:
    """Return the block of each parameter; empty where none is in a block.

    What is in no block joins the one registered before it, or the first.
    """
    found = list(find_blocks(model))
    own = [next((b for b in found if name.startswith(f"{b}.")), None) for name in names]
    last = next(filter(None, own), None)
    joined = []
    for block in own:
        last = block or last
        if last is not None:
            joined.append(last)
    return joined


def _by_device(model: nn.Module, parameters: Mapping[str, nn.Parameter], count: int) -> list[str]:
    """Label parameters by run of consecutive blocks: the cut with the least sum of squared sizes.

    What a pipeline's stages are made of: a model with fewer blocks than that is cut between layers,
    where no stage can begin.
    """
    pieces = _blocks_of(model, parameters)
    if len(set(pieces)) < count:
        pieces = [_owner(name) for name in parameters]
    size_of: Counter[str] = Counter()
    for piece, parameter in zip(pieces, parameters.values(), strict=True):
        size_of[piece] += parameter.numel()
    if count > len(size_of):
        raise ValueError(
            f"count is {count} devices; expected 1 to {len(size_of)}, for the model has "
            f"{len(size_of)} layers with trainable parameters: count={len(size_of)}"
        )
    upto = [0, *itertools.accumulate(size_of.values())]
    # best[j]: the least cost of cutting the first j pieces into k chunks, and where it cuts.
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for _ in range(count):
        best = {
            j: min((best[i][0] + (upto[j] - upto[i]) ** 2, (*best[i][1], i)) for i in best if i < j)
            for j in range(min(best) + 1, len(size_of) + 1)
        }
    starts = best[len(size_of)][1]
    device = {piece: sum(i >= s for s in starts) - 1 for i, piece in enumerate(size_of)}
    return [f"device {device[piece]}" for piece in pieces]


def _by_patterns(
    names: Sequence[str], patterns: Sequence[Sequence[str]], partition_name: str
) -> Parts:
    word = "device" if partition_name == "per_device" else "group"
    groups = {f"{word} {k}": own for k, own in enumerate(patterns)}
    matches = {
        name: [group for group, own in groups.items() if any(fnmatchcase(name, p) for p in own)]
        for name in names
    }
    if none := [name for name, found in matches.items() if not found]:
        raise ValueError(
            f"trainable parameters in no group: {_some(none)}; expected each to match the patterns "
            f"of exactly one of {_some(groups)}: add a pattern, such as {none[0]!r}"
        )
    if several := [f"{name} ({', '.join(own)})" for name, own in matches.items() if len(own) > 1]:
        raise ValueError(
            f"trainable parameters in several groups: {_some(several)}; expected each to match the "
            "patterns of exactly one: narrow the patterns, such as h.1.* for h.1*"
        )
    parts = tuple((g, tuple(n for n in names if matches[n] == [g])) for g in groups)
    if empty := [f"{group} {list(groups[group])}" for group, own in parts if not own]:
        raise ValueError(
            f"groups without a trainable parameter: {_some(empty)}; expected at least one in each, "
            f"out of {_some(names)}: correct or leave out these patterns"
        )
    return parts


def _type(module: nn.Module) -> str:
    classes = {cls.__name__ for cls in type(module).__mro__}
    if isinstance(module, nn.Linear) or "Conv1D" in classes:
        return "linear"
    if isinstance(module, nn.modules.conv._ConvNd):
        return "convolution"
    if isinstance(module, nn.Embedding):
        return "embedding"
    return "norm" if "Norm" in type(module).__name__ else "other"


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _some(items: Iterable[str]) -> str:
    items = list(items)
    rest = f" and {len(items) - 8} more" if len(items) > 8 else ""
    return ", ".join(items[:8]) + rest
