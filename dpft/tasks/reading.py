"""One pass over a table: the checks of all rows, and what the run needs to know of them."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpft.tasks.base import digest_owners, framed
from dpft.tasks.objectives.records import LabelledText, Record
from dpft.tasks.table_files import Rows
from dpft.tasks.tables import TableRow
from dpft.tasks.views import IntArray, Owners

_BLOCK = 1 << 12


@dataclass(frozen=True)
class Reading:
    """What was found in one split of a table.

    Attributes:
        rows: of the split.
        owners: of the rows; None where they are not needed.
        fingerprint: `dpft.tasks.base.fingerprint` of the records that are used.
        contents: 64 bits of each record's digest: equal ones are equal records, but for odds of one
            in a million at ten million records.
        labels: how many records have a label; empty where they have none.
    """

    rows: Rows
    owners: Owners | None
    fingerprint: str
    contents: IntArray
    labels: Counter[int]


def contents_of(records: Iterable[Record]) -> IntArray:
    """Return the `Reading.contents` of records, wherever they were read."""
    digests = (hashlib.sha256(framed(record.parts())).digest() for record in records)
    return np.frombuffer(array("Q", map(_short, digests)), np.uint64)


def _short(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big")


def read_splits(
    rows: Rows,
    splits: Sequence[str],
    advance: Callable[[int], None],
    *,
    record: Callable[[TableRow], Record],
    owner: Callable[[TableRow], str] | None = None,
    split: Callable[[TableRow, str], str] | None = None,
    limit: int | None = None,
    owned: bool = False,
) -> Mapping[str, Reading]:
    """Read a table once, and sort its rows into splits.

    Args:
        rows: of the table.
        splits: names of all splits.
        advance: called with the number of rows that were read.
        record: makes the record of a row.
        owner: makes the user of a row; None: not needed.
        split: makes the split of a row and its record's digest; None: all are of the first.
        limit: number of records of the first split that are used, and are in its fingerprint.
        owned: True if the fingerprint of the first split covers the owners too.
    """
    codes = {name: code for code, name in enumerate(splits)}
    digests = [hashlib.sha256() for _ in codes]
    counts, labels = [0] * len(codes), [Counter[int]() for _ in codes]
    sides, contents = array("B"), array("Q")

    def named() -> Iterable[str]:
        for number, row in enumerate(rows, 1):
            made = record(row)
            content = framed(made.parts())
            digest = hashlib.sha256(content)
            side = 0 if split is None else codes[split(row, digest.hexdigest())]
            if side or limit is None or counts[0] < limit:
                digests[side].update(content)
            counts[side] += 1
            sides.append(side)
            contents.append(_short(digest.digest()))
            if isinstance(made, LabelledText):
                labels[side][made.label] += 1
            if number % _BLOCK == 0:
                advance(_BLOCK)
            if owner is not None:
                yield owner(row)

    owners = Owners.of(named())
    side, content = np.frombuffer(sides, np.uint8), np.frombuffer(contents, np.uint64)
    found = {}
    for name, code in codes.items():
        chosen = np.flatnonzero(side == code)
        theirs = None if owner is None else owners.part(chosen)
        if owned and theirs is not None and code == 0:
            digest_owners(digests[code], theirs)
        found[name] = Reading(
            rows.take(chosen), theirs, digests[code].hexdigest(), content[chosen], labels[code]
        )
    return found
