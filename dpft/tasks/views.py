"""Sequences that make their items on access: ten million records do not fit memory as objects.

The users of as many records are numbers, since their names as Python strings take a gigabyte.
"""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
IntArray = npt.NDArray[np.integer[Any]]
FloatArray = npt.NDArray[np.float64]


def blocks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of ``size`` items; the last may be shorter."""
    iterator = iter(items)
    while block := list(islice(iterator, size)):
        yield block


class View(Sequence[T]):
    """A sequence that compares like the list of its items; a slice of it is a view too."""

    @abstractmethod
    def _item(self, index: int) -> T:
        """Return the item at an index from 0 to the length."""

    @abstractmethod
    def _part(self, chosen: slice) -> Sequence[T]:
        """Return the items of a slice."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return self._part(index)
        return self._item(range(len(self))[index])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


class Mapped(View[T]):
    """The results of a function on the items of a sequence, computed on every access."""

    def __init__(self, make: Callable[[Any], T], items: Sequence[Any]) -> None:
        self._make = make
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def _item(self, index: int) -> T:
        return self._make(self._items[index])

    def _part(self, chosen: slice) -> Sequence[T]:
        return Mapped(self._make, self._items[chosen])

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._items)


class Owners(View[str]):
    """The owner of each record: ``codes`` ``(n,)``, which index the sorted ``names``."""

    def __init__(self, names: Sequence[str], codes: IntArray) -> None:
        self.names = names
        self.codes = codes

    @classmethod
    def of(cls, names: Iterable[str]) -> Owners:
        """Return owners by name, one for each record."""
        if isinstance(names, Owners):
            return names
        found: dict[str, int] = {}
        numbers = np.fromiter((found.setdefault(name, len(found)) for name in names), np.int32)
        ordered = sorted(found)
        places = np.argsort([found[name] for name in ordered]).astype(np.int32)
        return cls(ordered, places[numbers])

    def part(self, chosen: IntArray | slice) -> Owners:
        """Return the owners of some records, without the names of the others."""
        present, codes = np.unique(self.codes[chosen], return_inverse=True)
        return Owners([self.names[code] for code in present], codes)

    _part = part

    def groups(self) -> tuple[IntArray, IntArray]:
        """Return the records in order of owner, and where the records of each owner begin.

        Returns:
            Indices of records ``(n,)``, ascending within an owner; and bounds ``(owners + 1,)``:
            those of owner ``u`` are ``bounds[u] : bounds[u + 1]``.
        """
        counts = np.bincount(self.codes, minlength=len(self.names))
        return np.argsort(self.codes, kind="stable"), np.concatenate(([0], np.cumsum(counts)))

    def __len__(self) -> int:
        return len(self.codes)

    def _item(self, index: int) -> str:
        return self.names[int(self.codes[index])]

    def __iter__(self) -> Iterator[str]:
        return map(self.names.__getitem__, self.codes)


def one_spelling(name: str) -> str:
    """Return a user's name in one Unicode form, without invisible characters and extra spaces.

    Guarantee: names that people read as one are one unit. As two units, each would be protected
    separately: less than was promised.
    """
    if name.isascii() and name.isprintable():
        return " ".join(name.split())
    normal = unicodedata.normalize("NFKC", name)
    shown = (c for c in normal if c.isspace() or unicodedata.category(c)[0] != "C")
    return " ".join("".join(shown).split())
