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
from dpft.tasks.owners import IntArray, Owners, check_names
from dpft.tasks.table_files import Rows
from dpft.tasks.tables import TableRow

_BLOCK = 1 << 12


@dataclass(frozen=True)
class RowRules:
    """How the rows of a table are read.

    Attributes:
        record: a row as a record.
        owner: the user of a row; None: not needed.
        split: of a row, given the digest of its record; None: all are of the first split.
        splits: all splits.
        limit: number of records of the first split that are used, and are in its fingerprint.
        owned: True if the fingerprint of the first split covers the owners too.
    """

    record: Callable[[TableRow], Record]
    owner: Callable[[TableRow], str] | None
    split: Callable[[TableRow, str], str] | None
    splits: Sequence[str]
    limit: int | None = None
    owned: bool = False


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
    rows: Rows, rules: RowRules, advance: Callable[[int], None] = lambda count: None
) -> Mapping[str, Reading]:
    """Read a table once, and sort its rows into splits.

    Raises:
        DataError: naming file and line.
    """
    codes = {split: code for code, split in enumerate(rules.splits)}
    digests = [hashlib.sha256() for _ in codes]
    counts, labels = [0] * len(codes), [Counter[int]() for _ in codes]
    sides, contents = array("B"), array("Q")

    def named() -> Iterable[str]:
        for number, row in enumerate(rows, 1):
            record = rules.record(row)
            content = framed(record.parts())
            digest = hashlib.sha256(content)
            side = 0 if rules.split is None else codes[rules.split(row, digest.hexdigest())]
            if side or rules.limit is None or counts[0] < rules.limit:
                digests[side].update(content)
            counts[side] += 1
            sides.append(side)
            contents.append(_short(digest.digest()))
            if isinstance(record, LabelledText):
                labels[side][record.label] += 1
            if number % _BLOCK == 0:
                advance(_BLOCK)
            if rules.owner is not None:
                yield rules.owner(row)

    owners = Owners.of(named())
    check_names(owners, lambda index: rows[index].place)
    side, content = np.frombuffer(sides, np.uint8), np.frombuffer(contents, np.uint64)
    found = {}
    for split, code in codes.items():
        chosen = np.flatnonzero(side == code)
        theirs = None if rules.owner is None else owners.part(chosen)
        if rules.owned and theirs is not None and code == 0:
            digest_owners(digests[code], theirs)
        found[split] = Reading(
            rows=rows.take(chosen),
            owners=theirs,
            fingerprint=digests[code].hexdigest(),
            contents=content[chosen],
            labels=labels[code],
        )
    return found
