"""What settings may be, what they change, and what is said of one that is wrong.

A group of settings is a frozen dataclass. Its annotations are checked strictly: a text is no
number. ``Annotated`` adds `Bounds` and, where a setting leaves the result alone, its `Effect`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar

from dpft.config.errors import ConfigError, suggestion

T = TypeVar("T")


@dataclass(frozen=True)
class Bounds:
    """Where a number, or each number of a list, may lie; a hint is said where it does not."""

    above: float = -math.inf
    least: float = -math.inf
    most: float = math.inf
    below: float = math.inf
    hint: str = ""

    def check(self, name: str, value: Any) -> None:
        """Refuse what lies elsewhere, by the name as it is typed; None passes."""
        for one in value if isinstance(value, tuple) else (value,):
            number = isinstance(one, int | float) and not isinstance(one, bool)
            if one is not None and not (number and self._has(one)):
                holds = "holds" if isinstance(value, tuple) else "is"
                raise ConfigError(f"{name} {holds} {one!r}; expected a number {self}{self.hint}")

    def _has(self, value: float) -> bool:
        return self.above < value < self.below and self.least <= value <= self.most

    def __str__(self) -> str:
        ends = {">": self.above, ">=": self.least, "<=": self.most, "<": self.below}
        return " and ".join(f"{sign} {end:g}" for sign, end in ends.items() if math.isfinite(end))


HUGE = 1e30  # products with larger numbers overflow in float32
COUNT = Bounds(above=0)
SEED = Bounds(least=0, below=2**63)  # what random generators have room for
Count = Annotated[int, COUNT]
Whole = Annotated[int, Bounds(least=0)]
Seed = Annotated[int, SEED]
Positive = Annotated[float, Bounds(above=0, most=HUGE)]
NonNegative = Annotated[float, Bounds(least=0, most=HUGE)]
Fraction = Annotated[float, Bounds(least=0, below=1)]
Share = Annotated[float, Bounds(above=0, below=1)]


class Effect(Enum):
    """What a setting changes instead of the result of a run; most have none of these."""

    PLACE = "where a run lies, and what it is called"
    EXECUTION = "where and how it is computed, which may change when it is resumed"
    REPETITION = "which run of an experiment it is: scores of all of them stand for one cell"


def names_with(cls: type, *effects: Effect) -> frozenset[str]:
    """The settings of a group that have one of these effects."""
    return frozenset(
        name
        for name, hint in _hints(cls).items()
        if any(effect in extras for _, extras in _options(hint) for effect in effects)
    )


def one_of(name: str, value: Any, known: Collection[str]) -> None:
    """Refuse what is not in ``known``, with the nearest name."""
    if value not in known:
        raise ConfigError(
            f"{name} is {value!r}; expected one of {', '.join(known)}"
            f"{suggestion(str(value), known)}"
        )


def build(cls: type[T], mapping: Mapping[str, Any], where: str = "", **beside: Any) -> T:
    """Build dataclass ``cls`` from a config group, refusing unknown keys and wrong values.

    Args:
        cls: the group.
        mapping: its settings.
        where: the group as it is typed; empty for the whole config.
        beside: fields of ``cls`` that are no settings.

    Raises:
        ConfigError: naming the key as the user would type it.
    """
    _check_group(mapping, where)
    dot = where and f"{where}."
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init and f.name not in beside}  # type: ignore[arg-type]
    values = {}
    for key, value in mapping.items():
        if key not in fields:
            raise ConfigError(
                f"unknown setting {dot}{key}{suggestion(str(key), fields)}; known: "
                f"{', '.join(f'{dot}{name}' for name in fields)}"
            )
        if value == "???":  # what a file of conf/ leaves to whoever chooses it
            raise ConfigError(f"{dot}{key} is not set; type {dot}{key}=VALUE")
        values[key] = _checked(value, _hints(cls)[key], f"{dot}{key}")
    for name, field in fields.items():
        needed = field.default is field.default_factory is dataclasses.MISSING
        if needed and name not in values:
            raise ConfigError(f"{dot}{name} is not set; type {dot}{name}=VALUE")
    return cls(**values, **beside)


# A table builds hundreds of configs, and resolving annotations takes half of that time.
_hints: Callable[[Any], dict[str, Any]] = functools.cache(
    functools.partial(typing.get_type_hints, include_extras=True)
)


@functools.cache
def _options(hint: Any, extras: tuple[Any, ...] = ()) -> tuple[tuple[Any, Any], ...]:
    """The types that a hint allows, each with what `Annotated` adds to it."""
    if typing.get_origin(hint) is Annotated:
        return _options(hint.__origin__, (*extras, *hint.__metadata__))
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return tuple(one for part in typing.get_args(hint) for one in _options(part, extras))
    return ((hint, extras),)


def _word(kind: Any) -> str:
    """What a type is called in an error."""
    if typing.get_origin(kind) is Literal:
        return " or ".join(map(str, typing.get_args(kind)))
    return "null" if kind is types.NoneType else str(kind.__name__)


def _check_group(value: Any, name: str) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{name} is {str(value)[:60]!r}; expected a group of settings, as in conf/config.yaml"
        )


def _checked(value: Any, hint: Any, name: str) -> Any:
    """The value as the annotation has it, if it fits."""
    options = _options(hint)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} is {value}; expected a finite number")
    for kind, extras in options:
        if dataclasses.is_dataclass(kind):
            return build(kind, value, name)  # type: ignore[arg-type]
        origin = typing.get_origin(kind) or kind
        if origin is Literal:
            others = [other for other, _ in options if other not in (kind, types.NoneType)]
            absent = value is None and types.NoneType in (other for other, _ in options)
            if not absent and not others:
                one_of(name, value, typing.get_args(kind))
            if absent or value in typing.get_args(kind):
                return value
            continue
        if origin is Mapping:
            _check_group(value, name)
        if origin is tuple and isinstance(value, Sequence) and not isinstance(value, str):
            value = tuple(value)
        if origin is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if isinstance(value, origin) and (origin is bool or not isinstance(value, bool)):
            for bounds in extras:
                if isinstance(bounds, Bounds):
                    bounds.check(name, value)
            return value
    kinds = [kind for kind, _ in options]
    expected = " or ".join(map(_word, kinds))
    number = str in kinds and isinstance(value, int | float) and not isinstance(value, bool)
    quoted = f"; as text, type \"{name}='{value}'\"" if number else ""
    raise ConfigError(f"{name} is {value!r} ({type(value).__name__}); expected {expected}{quoted}")
