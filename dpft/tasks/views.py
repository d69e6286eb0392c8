"""Sequences that make their items on access: ten million records do not fit memory as objects."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, overload

T = TypeVar("T")


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
