"""One reading of a table: what is kept of each row, and what is found out about all of them.

Rows may be many more than fit memory as objects. Of each a few numbers are kept: where it begins, a
digest, whose it is. All checks are made in the same pass.
"""

from __future__ import annotations

import hashlib
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dpft.tasks.base import digest_owners, framed
from dpft.tasks.objectives.records import LabelledText, Record
from dpft.tasks.owners import IntArray, Owners
from dpft.tasks.table_files import Rows, TableFile
from dpft.tasks.tables import TableRow, may_hold_rows
from dpft.tasks.user_names import check_names
from dpft.tasks.views import Mapped

_BLOCK = 1 << 12


@dataclass(frozen=True)
class RowRules:
    """How the rows of a table are read.

    Attributes:
        record: a row as a record.
        texts: of a row, to be measured.
        owner: whose a row is; None: not needed.
        split: of a row, given the digest of its record; None: all are of the first split.
        splits: that there are.
        limits: of a split, how many of its records are used; they alone are in its fingerprint.
        owned: whether the fingerprint of the first split is also of the owners.
    """

    record: Callable[[TableRow], Record]
    texts: Callable[[TableRow], tuple[str, ...]]
    owner: Callable[[TableRow], str] | None
    split: Callable[[TableRow, str], str] | None
    splits: Sequence[str]
    limits: Mapping[str, int]
    owned: bool = False


@dataclass(kw_only=True)
class Counts:
    """What was counted in one split of a table.

    Attributes:
        characters: how many records have so many, a space between two texts.
        breaks: how many records have a text with so many line breaks; zero is left out.
        labels: how many records have a label; empty where they have none.
        swallowed: how many rows hold lines that look like rows of the file.
        swallowed_first: where the first of them stands.
        copies: how many different records occur so often; once is left out.
        near_copies: the same of their texts, apart from letter case, white space and Unicode form.
    """

    characters: Counter[int] = field(default_factory=Counter)
    breaks: Counter[int] = field(default_factory=Counter)
    labels: Counter[int] = field(default_factory=Counter)
    swallowed: int = 0
    swallowed_first: str = ""
    copies: Counter[int] = field(default_factory=Counter)
    near_copies: Counter[int] = field(default_factory=Counter)


@dataclass(kw_only=True)
class Reading(Counts):
    """What was found in one split of a table.

    Attributes:
        rows: which are read again when asked for.
        owners: of the rows; None where they are not needed.
        fingerprint: `dpft.tasks.base.fingerprint` of the records that are used.
        contents: 64 bits of each record's digest: equal ones are equal records, but for odds of one
            in a million at ten million records.
    """

    rows: Rows
    owners: Owners | None
    fingerprint: str
    contents: IntArray


class _Split:
    """What is collected of one split."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.positions = array("q")
        self.numbers = array("I")
        self.contents = array("Q")
        self.folded = array("q")
        self.digest = hashlib.sha256()
        self.counts = Counts()

    def add(self, position: int, number: int, content: bytes, own: bytes) -> None:
        """Keep of a row where it is, and of its record's contents the digests."""
        if self.limit is None or len(self.positions) < self.limit:
            self.digest.update(content)
        self.positions.append(position)
        self.numbers.append(number)
        self.contents.append(_short(own))

    def count(self, row: TableRow, record: Record, texts: tuple[str, ...]) -> None:
        counts = self.counts
        self.folded.append(hash(tuple(map(_folded, texts))))  # compared within this pass alone
        counts.characters[sum(map(len, texts)) + len(texts) - 1] += 1
        if broken := max(text.count("\n") for text in texts):
            counts.breaks[broken] += 1
        if isinstance(record, LabelledText):
            counts.labels[record.label] += 1
        if may_hold_rows(row):
            counts.swallowed += 1
            counts.swallowed_first = counts.swallowed_first or row.place

    def rows(self, file: TableFile) -> Rows:
        return Rows(file, _numbers(self.positions), _numbers(self.numbers))

    def reading(self, file: TableFile, owners: Owners | None, owned: bool) -> Reading:
        if owned and owners is not None:
            digest_owners(self.digest, owners)
        self.counts.copies, self.counts.near_copies = map(_copies, (self.contents, self.folded))
        return Reading(
            rows=self.rows(file),
            owners=owners,
            fingerprint=self.digest.hexdigest(),
            contents=_numbers(self.contents),
            **vars(self.counts),
        )


def _folded(text: str) -> str:
    """Return a text with its letter case, white space and Unicode form normalised."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def _copies(values: array[int]) -> Counter[int]:
    """Return how many different values occur twice, three times, and so on."""
    ordered = np.sort(_numbers(values))
    _, repeats = np.unique(ordered[1:][ordered[1:] == ordered[:-1]], return_counts=True)
    return Counter((repeats + 1).tolist())


def contents_of(records: Iterable[Record]) -> IntArray:
    """The `Reading.contents` of records, wherever they were read."""
    found = array("Q")
    for record in records:
        found.append(_short(hashlib.sha256(framed(record.parts())).digest()))
    return _numbers(found)


def _short(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big")


def read_splits(
    file: TableFile, rules: RowRules, advance: Callable[[int], None] = lambda count: None
) -> dict[str, Reading]:
    """Read a table once, and sort its rows into splits.

    Raises:
        DataError: naming file and line.
    """
    parts = {split: _Split(rules.limits.get(split)) for split in rules.splits}
    codes = {split: code for code, split in enumerate(rules.splits)}
    sides, names, columns = bytearray(), [], []
    first = rules.splits[0]
    for position, number, row in file.scan():
        record = rules.record(row)
        content = framed(record.parts())
        digest = hashlib.sha256(content)
        split = first if rules.split is None else rules.split(row, digest.hexdigest())
        part = parts[split]
        part.add(position, number, content, digest.digest())
        part.count(row, record, rules.texts(row))
        if rules.owner is not None:
            names.append(rules.owner(row))
        sides.append(codes[split])
        if len(sides) % _BLOCK == 0:
            advance(_BLOCK)
            if names:
                columns.append(pa.array(names, pa.large_string()))
                names.clear()
    columns.append(pa.array(names, pa.large_string()))
    side = np.frombuffer(sides, np.uint8)
    owners = None
    if rules.owner is not None:
        owners = Owners.encoded(pa.chunked_array(columns))

        def row_at(index: int) -> TableRow:
            among = np.count_nonzero(side[:index] == side[index])
            return parts[rules.splits[side[index]]].rows(file)[int(among)]

        check_names(Mapped(row_at, range(len(side))), owners)
    return {
        split: part.reading(
            file,
            None if owners is None else owners.part(np.flatnonzero(side == codes[split])),
            rules.owned and split == first,
        )
        for split, part in parts.items()
    }


def _numbers(values: array[int]) -> IntArray:
    return np.frombuffer(values, values.typecode)
