"""Tensors that share storage, taken apart for saving and put together again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from torch import Tensor


class Alias(TypedDict):
    """A view of another tensor: ``offset`` counts elements from the start of tensor ``of``."""

    of: str
    offset: int
    shape: list[int]
    stride: list[int]


def pack(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Alias]]:
    """Separate tensors into owners of memory and views of an owner (tied weights, slices).

    Returns:
        Owners by name, on the CPU and contiguous, and the aliases that `unpack` restores. A view
        that reaches beyond every other tensor of its storage becomes an owner of its own copy.
    """
    # Widest first, so that an owner is met before what it covers; by name among equals, so that
    # the same tensors are always packed the same way.
    order = sorted(tensors, key=lambda name: (-_span(tensors[name]), name))
    owners: dict[str, Tensor] = {}
    aliases: dict[str, Alias] = {}
    by_storage: dict[tuple[Any, ...], list[str]] = {}
    for name in order:
        tensor = tensors[name]
        peers = by_storage.setdefault(_storage(name, tensor), [])
        owner = next((peer for peer in peers if _covers(tensors[peer], tensor)), None)
        if owner is not None:
            aliases[name] = {
                "of": owner,
                "offset": int(tensor.storage_offset() - tensors[owner].storage_offset()),
                "shape": list(tensor.shape),
                "stride": list(tensor.stride()),
            }
            continue
        owners[name] = tensor.detach().cpu().contiguous()
        if tensor.is_contiguous():
            peers.append(name)
    return owners, aliases


def unpack(owners: Mapping[str, Tensor], aliases: Mapping[str, Alias]) -> dict[str, Tensor]:
    """The inverse of `pack`: tied tensors share storage again."""
    # Cloned, because loaders hand out views of one mapped file: everything would look tied.
    tensors = {name: tensor.clone() for name, tensor in owners.items()}
    for name, alias in aliases.items():
        owner = tensors[alias["of"]]
        offset = owner.storage_offset() + alias["offset"]
        tensors[name] = owner.as_strided(alias["shape"], alias["stride"], offset)
    return tensors


def portable(value: Any, where: str = "state") -> Any:
    """A copy of a training state that holds plain data only, and pickles to the same bytes always.

    Pickle writes one shared object differently from two equal ones, and which of the two a state
    holds changes when it is loaded. So strings are interned and containers are made anew.

    Raises:
        TypeError: naming the place of a value that is not plain data.
    """
    import torch

    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        whole = tensor.untyped_storage().nbytes() == tensor.nbytes
        return tensor if whole else tensor.clone()
    if isinstance(value, str):
        return sys.intern(str(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {
            portable(key, where): portable(item, f"{where}[{key!r}]") for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        items = [portable(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    raise TypeError(
        f"{where} is a {type(value).__name__}; expected tensors, numbers, strings, booleans, None, "
        f"dicts, lists and tuples only: a checkpoint must load without running code"
    )


def _span(tensor: Tensor) -> int:
    """Elements of storage from the tensor's first to its last, inclusive."""
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)


def _storage(name: str, tensor: Tensor) -> tuple[Any, ...]:
    pointer = tensor.untyped_storage().data_ptr()
    if tensor.numel() == 0 or pointer == 0:
        return (name,)  # empty tensors share the null pointer, and nothing else
    return (str(tensor.device), pointer, str(tensor.dtype))


def _covers(owner: Tensor, tensor: Tensor) -> bool:
    start = tensor.storage_offset() - owner.storage_offset()
    return bool(start >= 0 and start + _span(tensor) <= owner.numel())
