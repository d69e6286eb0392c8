"""Names of users: two that people would read as one are refused."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpft.config.errors import DataError
from dpft.tasks.owners import Owners
from dpft.tasks.tables import TableRow


def check_names(rows: Sequence[TableRow], owners: Owners) -> None:
    """Refuse two names of users that people would read as one.

    One person under two names is two units, each protected by itself: less than was promised.

    Raises:
        DataError: naming both places, for names that differ in spaces, Unicode form or characters
            that are not seen only.
    """
    alike = _alike(owners.names)
    if not alike:
        return
    first = np.full(len(owners.names), len(owners), np.int64)
    np.minimum.at(first, owners.codes, np.arange(len(owners)))
    # Of each group the first row of the name that came second; of these the first in the file.
    pairs = [sorted(int(first[code]) for code in group)[:2] for group in alike]
    one, two = min(pairs, key=lambda pair: pair[1])
    raise DataError(
        f"{rows[two].place}: user {owners[two]!a} differs from {owners[one]!a} "
        f"({rows[one].place}) only in spaces, Unicode form or characters that are not seen; "
        "expected one spelling for each user, since two names are two users"
    )


def _alike(names: pa.Array) -> list[list[int]]:
    """Groups of names that look alike, by index.

    Only a name that looks otherwise than it is spelt can look like another: usually there is none.
    """
    odd: dict[str, list[int]] = {}
    for start in range(0, len(names), _BLOCK):
        for index, name in enumerate(names.slice(start, _BLOCK).to_pylist(), start):
            if (look := _seen(name)) != name:
                odd.setdefault(look, []).append(index)
    looks = pa.array(list(odd), pa.large_string())
    for look, index in zip(odd, pc.index_in(looks, names).to_pylist(), strict=True):
        if index is not None:  # somebody is spelt as these look
            odd[look].append(index)
    return [group for group in odd.values() if len(group) > 1]


_BLOCK = 1 << 16
# What leaves no mark where it is shown: Unicode's property Default_Ignorable_Code_Point
# (DerivedCoreProperties.txt), which the standard library does not have, without category Cf.
_UNSEEN = (
    *((0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2065, 0x2065)),
    *((0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0xE0000, 0xE0FFF)),
)
_BLANK = "\u2800"  # a Braille cell without a dot


def _is_unseen(character: str) -> bool:
    code = ord(character)
    unseen = any(first <= code <= last for first, last in _UNSEEN)
    return unseen or unicodedata.category(character) == "Cf"


def _seen(name: str) -> str:
    """A name as people see it: without marks of direction and width, in one Unicode form."""
    if name.isascii() and name.isprintable():
        return " ".join(name.split())
    visible = "".join(" " if c.isspace() or c == _BLANK else c for c in name if not _is_unseen(c))
    normal = unicodedata.normalize("NFKC", visible)
    return " ".join("".join(c for c in normal if c.isspace() or c.isprintable()).split())
