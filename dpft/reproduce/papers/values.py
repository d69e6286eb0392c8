"""The kinds of values in a table's file: each returns its value or names place and kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dpft.config.errors import suggestion
from dpft.reproduce.papers.schema import ACCOUNTANTS, Label, PaperError

T = TypeVar("T")


def text(value: Any, where: str) -> str:
    """A text, its blanks and line breaks made single blanks."""
    if not isinstance(value, str) or not value.strip():
        raise PaperError(f"{where} is {value!r}; expected a text")
    return " ".join(value.split())


def number(value: Any, where: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PaperError(f"{where} is {value!r}; expected a number")
    return float(value)


def count(value: Any, where: str) -> int:
    """A whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PaperError(f"{where} is {value!r}; expected a whole number above 0")
    return value


def digits(value: Any, where: str) -> int:
    """A whole number, 0 or more."""
    return count(value, where) if value != 0 or isinstance(value, bool) else 0


def better(value: Any, where: str) -> bool:
    """Whether higher is better."""
    if value not in ("higher", "lower"):
        raise PaperError(f"{where} is {value!r}; expected higher or lower")
    return bool(value == "higher")


def at_laptop(value: Any, where: str) -> bool:
    """``skip``, for what is left out at that scale."""
    if value != "skip":
        raise PaperError(f"{where} is {value!r}; expected skip, or no such key")
    return False


def listed(value: Any, where: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise PaperError(f"{where} is {value!r}; expected a list")
    return value


def keys(value: Any, where: str) -> dict[str, Any]:
    """A mapping, its keys as words."""
    if not isinstance(value, Mapping):
        raise PaperError(f"{where} is {value!r}; expected keys with values")
    return {str(key): item for key, item in value.items()}


def words(value: Any, where: str) -> tuple[str, ...]:
    """A list of texts."""
    return tuple(text(word, where) for word in listed(value, where))


def metrics(value: Any, where: str) -> tuple[str, ...]:
    """One name, several, or none for null."""
    if value is None:
        return ()
    return words(value, where) if isinstance(value, list) else (text(value, where),)


def labels(value: Any, where: str) -> dict[str, Label]:
    """A mapping to texts and numbers that is not empty."""
    labels = keys(value, where)
    for key, label in labels.items():
        if isinstance(label, bool) or not isinstance(label, str | int | float | None):
            raise PaperError(f"{where}, {key} is {label!r}; expected a text or a number: quote it")
    if not labels:
        raise PaperError(f"{where} is empty; expected what tells the row from the others")
    return labels


def interval(value: Any, where: str) -> tuple[float, float]:
    """Two numbers in order."""
    ends = [number(end, where) for end in listed(value, where)]
    if len(ends) != 2 or ends[0] > ends[1]:
        raise PaperError(f"{where} is {value!r}; expected [low, high]")
    return ends[0], ends[1]


def epsilons(value: Any, where: str) -> dict[str, Mapping[str | None, float]]:
    """By accountant: one number, or one a column."""
    found: dict[str, Mapping[str | None, float]] = {}
    for name, printed in keys(value, where).items():
        if name not in ACCOUNTANTS:
            raise PaperError(
                f"{where} has an unknown accountant {name!r}{suggestion(name, ACCOUNTANTS)}; "
                f"expected {', '.join(ACCOUNTANTS)}"
            )
        place = f"{where}, {name}"
        if isinstance(printed, Mapping):
            found[name] = {k: number(x, place) for k, x in keys(printed, place).items()}
        else:
            found[name] = {None: number(printed, place)}
    return found


def optional(kind: Callable[[Any, str], T]) -> Callable[[Any, str], T | None]:
    """A kind that may also be null."""
    return lambda value, where: None if value is None else kind(value, where)


def by_column(kind: Callable[[Any, str], T]) -> Callable[[Any, str], dict[str, T]]:
    """A mapping whose values are of one kind."""
    return lambda value, where: {
        key: kind(item, f"{where}, {key}") for key, item in keys(value, where).items()
    }
