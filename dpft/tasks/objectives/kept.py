"""State that a loss or a model keeps from one forward to the next, apart from its saved tensors.

A loss with a memory of earlier batches couples records, perhaps only once the memory is full, which
no comparison of losses before the first step shows. That the memory grows does show.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections import Counter, deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpft.privacy.untouched import bit_sums

# Functions and objects of these are not searched.
_LIBRARIES = sys.stdlib_module_names | {
    *("accelerate", "datasets", "numpy", "peft", "PIL", "tokenizers", "torch", "torchvision"),
    *("transformers", "trl"),
}
_CONTAINERS = (dict, list, tuple, set, deque)
_HOLDERS = (*_CONTAINERS, nn.Module, types.CellType, types.MethodType, functools.partial)
_PLAIN = (int, float, complex, str, bytes, type(None))
_MOST = 2000  # items of a container that are searched


def kept(*roots: object) -> Counter[tuple[str, str, object]]:
    """Count what can be reached from some objects and may hold something of a batch.

    That is the bits of tensors and arrays, and the lengths of containers, wherever attributes,
    closures, classes, and global variables of functions lead. Parameters, single numbers, texts and
    objects of libraries are left out.

    Returns:
        Counts by (holder, type, length or sums of bits).
    """
    found: Counter[tuple[str, str, object]] = Counter()
    pending: list[tuple[str, Any]] = [(type(root).__name__, root) for root in roots]
    seen: dict[int, object] = {}  # holds what it has seen, so that no other object gets its id
    while pending:
        holder, value = pending.pop()
        if id(value) in seen or isinstance(value, nn.Parameter | types.ModuleType):
            continue
        seen[id(value)] = value
        kind = type(value).__name__
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            value = torch.tensor(value)  # a copy: an array may be read-only
        if isinstance(value, Tensor):
            found[holder, kind, (tuple(value.shape), *bit_sums(value).tolist())] += 1
        elif isinstance(value, types.FunctionType) and not _of_library(value):
            used = [value.__globals__.get(name) for name in value.__code__.co_names]
            outside = (*used, value.__closure__, value.__defaults__, value.__kwdefaults__)
            pending += [(value.__qualname__, part) for part in outside]
        elif isinstance(value, _HOLDERS) or not _of_library(value):
            if isinstance(value, _CONTAINERS):
                found[holder, kind, len(value)] += 1
            else:
                holder = getattr(value, "__qualname__", kind)
            parts = gc.get_referents(value)[:_MOST]
            pending += [(holder, part) for part in parts if not isinstance(part, _PLAIN)]
    return found


def _of_library(value: Any) -> bool:
    named = value if isinstance(value, type | types.FunctionType) else type(value)
    name = named.__module__ or "builtins"
    return name.partition(".")[0] in _LIBRARIES or name.startswith("dpft.privacy.")
