"""Whether what was read from a file is of the form that a TypedDict states."""

import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

NonNegative = typing.Annotated[float, "at least 0"]


def parse_json(text: str | bytes, infinities: bool = False) -> Any:
    """The content of a JSON text, as strict as what dpft writes.

    Args:
        text: in UTF-8.
        infinities: whether numbers may be infinite or NaN, as Python writes them.

    Raises:
        ValueError: it is no JSON or no UTF-8, is nested beyond all use, or has NaN for a number
            where none may be.
    """
    try:
        # Of bytes, Python would guess the encoding.
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(decoded, parse_constant=float if infinities else _refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


def fault(value: Any, hint: Any, where: str = "") -> str | None:
    """What is wrong with a value, in a clause that names the place; None if nothing is.

    Args:
        value: as JSON gives it.
        hint: a TypedDict, ``dict``, ``Mapping``, ``list``, a plain type, or a union of these.
            Whole numbers count something: they are at least 0. Numbers are finite.
        where: the dotted place of ``value``.
    """
    if typing.get_origin(hint) is typing.NotRequired:
        (hint,) = typing.get_args(hint)
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and types.NoneType in inside:
            return None
        found = [fault(value, option, where) for option in inside if option is not types.NoneType]
        return None if None in found else found[0]
    if typing.is_typeddict(hint):
        return _fault_of_keys(value, hint, where)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            return _got(value, "a mapping", where)
        parts = [(name, item, inside[1]) for name, item in value.items()]
    elif origin is list:
        if not isinstance(value, list):
            return _got(value, "a list", where)
        parts = [(str(place), item, inside[0]) for place, item in enumerate(value)]
    else:
        return _fault_of_plain(value, hint, where)
    return next(filter(None, (fault(v, h, _join(where, name)) for name, v, h in parts)), None)


def _fault_of_keys(value: Any, hint: Any, where: str) -> str | None:
    if not isinstance(value, Mapping):
        return _got(value, "a mapping", where)
    hints = _hints(hint)
    for name in sorted(hint.__required_keys__):
        if name not in value:
            return f"it has no {_join(where, name)}"
    parts = [(name, hints[name]) for name in hints if name in value]
    return next(filter(None, (fault(value[n], h, _join(where, n)) for n, h in parts)), None)


@functools.cache  # a table has hundreds of records of one form
def _hints(hint: type) -> dict[str, Any]:
    return typing.get_type_hints(hint, include_extras=True)


def _fault_of_plain(value: Any, hint: Any, where: str) -> str | None:
    if hint is Any:
        return None
    if hint is int:
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return None if fits else _got(value, "a whole number of at least 0", where)
    if hint in (float, NonNegative):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        expected = "a number" if hint is float else "a number of at least 0"
        fits = number and math.isfinite(value) and (hint is float or value >= 0)
        return None if fits else _got(value, expected, where)
    words = {str: "text", bool: "true or false"}
    return None if isinstance(value, hint) else _got(value, words[hint], where)


def _got(value: Any, expected: str, where: str) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return f"{where or 'it'} is {shown}; expected {expected}"


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
