"""Encoded records as flat arrays: ten million examples as objects take tens of gigabytes.

An example is a dataclass of tokens and numbers. It is made anew when it is asked for.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from dpft.runs.array_store import Array, Arrays, ArrayWriter
from dpft.tasks.views import View

IntArray = npt.NDArray[np.integer[Any]]

_LENGTH = "length"
_OFFSETS = ".offsets"


def lengths(examples: Sequence[Any]) -> IntArray:
    """The ``length`` of every example, ``(n,)``."""
    if isinstance(examples, Packed):
        return examples.lengths
    return np.array([example.length for example in examples], np.int64)


def values(examples: Sequence[Any], field: str) -> IntArray:
    """A field of every example that is a number, ``(n,)``; zero where there is no such field."""
    if isinstance(examples, Packed):
        return examples.numbers(field)
    return np.array([getattr(example, field, 0) for example in examples], np.int64)


def fields(kind: type) -> dict[str, bool] | None:
    """The fields of an example, and whether each is a sequence; None for what cannot be packed."""
    if not dataclasses.is_dataclass(kind):
        return None
    hints = typing.get_type_hints(kind)
    found = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if hint not in (int, *_SEQUENCES):
            return None
        found[field.name] = hint in _SEQUENCES
    return found


_SEQUENCES = (tuple[int, ...], tuple[int, ...] | None)


def pack(examples: Sequence[Any], kind: npt.DTypeLike) -> dict[str, Array]:
    """Examples of one class as arrays.

    Args:
        examples: one at least.
        kind: of tokens.

    Returns:
        For a field of tokens one array of all of them, and how many each example has
        (``FIELD.offsets``); for a number one of all; and ``length``. A field that is None in all of
        them is left out.

    Raises:
        ValueError: if a field is None in some of them.
    """
    packed: dict[str, Array] = {_LENGTH: np.array([e.length for e in examples], np.int32)}
    for name, several in (fields(type(examples[0])) or {}).items():
        column = [getattr(example, name) for example in examples]
        if not several:
            packed[name] = np.array(column, np.int32)
            continue
        absent = sum(x is None for x in column)
        if absent not in (0, len(column)):
            raise ValueError(f"{name} is None in {absent} of {len(column)} examples; expected all")
        if not absent:
            packed[name] = np.array(list(chain.from_iterable(column)), kind)
            packed[name + _OFFSETS] = np.array([len(x) for x in column], np.int64)
    return packed


class Packer:
    """Puts packed pieces behind each other."""

    def __init__(self, writer: ArrayWriter) -> None:
        self._writer = writer
        self._ends: dict[str, int] = {}

    def add(self, packed: Mapping[str, Array]) -> None:
        """Append what `pack` made of the next examples.

        Raises:
            OSError: the disk is full.
        """
        for name, array in packed.items():
            values = array
            if name.endswith(_OFFSETS):
                if name not in self._ends:
                    self._writer.append(name, np.zeros(1, np.int64))
                values = np.cumsum(array) + self._ends.get(name, 0)
                self._ends[name] = int(values[-1])
            self._writer.append(name, values)


class Packed(View[Any]):
    """Examples that lie in arrays."""

    def __init__(self, kind: type, arrays: Arrays) -> None:
        self._kind = kind
        self._arrays = arrays
        self.lengths: IntArray = arrays[_LENGTH]
        self._numbers: dict[str, Array] = {}
        self._tokens: dict[str, tuple[Array, Callable[[int, int], Array]] | None] = {}
        for name, several in (fields(kind) or {}).items():
            if not several:
                self._numbers[name] = arrays[name]
            elif name in arrays:
                self._tokens[name] = arrays[name + _OFFSETS], arrays.reader(name)
            else:
                self._tokens[name] = None

    def numbers(self, field: str) -> IntArray:
        """A field that is a number, of all examples, ``(n,)``; zeros if there is none."""
        return self._numbers.get(field, np.zeros(len(self), np.int32))

    def __len__(self) -> int:
        return len(self.lengths)

    def _item(self, index: int) -> Any:
        found: dict[str, Any] = {
            name: int(numbers[index]) for name, numbers in self._numbers.items()
        }
        for name, tokens in self._tokens.items():
            found[name] = None
            if tokens is not None:
                offsets, read = tokens
                start, stop = offsets[index : index + 2].tolist()
                found[name] = tuple(read(start, stop).tolist())
        return self._kind(**found)
