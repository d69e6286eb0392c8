"""Which form the engine chose for each parameter, with repeated blocks folded into one row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# A block's number: the first part of a dotted name that is one.
_BLOCK = re.compile(r"(?<=\.)\d+(?=\.|$)")
# Names that may carry it.
_NAMES = ("parameter", "group")


def fold(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """One row of text for all entries that differ in the number of their block only.

    Args:
        entries: of `Clipper.explain`: ``parameter``, ``group``, ``shape``, ``form`` and so on.
    """
    folded: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for entry in entries:
        row = {column: _text(value) for column, value in entry.items()}
        key = (_BLOCK.sub("*", row[c], count=1) if c in _NAMES else row[c] for c in row)
        folded.setdefault(tuple(key), []).append(row)
    return [
        {
            column: _joined([row[column] for row in rows]) if column in _NAMES else text
            for column, text in rows[0].items()
        }
        for rows in folded.values()
    ]


def _text(value: Any) -> str:
    """Shapes as ``768x2304``."""
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _joined(names: Sequence[str]) -> str:
    """One name for those that differ in their block's number only.

    >>> _joined(["h.0.w", "h.1.w", "h.3.w"])
    'h.0-1,3.w'
    """
    found = [_BLOCK.search(name) for name in names]
    numbers = sorted({int(match.group()) for match in found if match is not None})
    return _BLOCK.sub(_ranges(numbers), names[0], count=1)


def _ranges(numbers: Sequence[int]) -> str:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
