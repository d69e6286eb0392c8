"""Sequences whose items are made when they are asked for: ten million records are no objects."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, overload

T = TypeVar("T")


def blocks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of so many items, the last of what is left; none for no items."""
    iterator = iter(items)
    while block := list(islice(iterator, size)):
        yield block


class View(Sequence[T]):
    """What is read and compared as the list of its items would be.

    A subclass has ``__len__`` and `_item`, and `_part` where a slice need not be a list.
    """

    @abstractmethod
    def _item(self, index: int) -> T:
        """The item at an index, which is 0 or more and below the length."""

    def _part(self, chosen: slice) -> Sequence[T]:
        return [self._item(index) for index in range(len(self))[chosen]]

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
        return len(self) == len(other) and all(
            one == another for one, another in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]


class Mapped(View[T]):
    """What a function makes of each item of a sequence, anew whenever it is asked for."""

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


class Joined(View[T]):
    """The items of one sequence, then those of another."""

    def __init__(self, first: Sequence[T], second: Sequence[T]) -> None:
        self._first = first
        self._second = second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def _item(self, index: int) -> T:
        size = len(self._first)
        return self._first[index] if index < size else self._second[index - size]

    def _part(self, chosen: slice) -> Sequence[T]:
        start, stop, step = chosen.indices(len(self))
        if step != 1:
            return super()._part(chosen)
        size = len(self._first)
        return Joined(
            self._first[min(start, size) : min(stop, size)],
            self._second[max(start - size, 0) : max(stop - size, 0)],
        )

    def __iter__(self) -> Iterator[T]:
        yield from self._first
        yield from self._second
