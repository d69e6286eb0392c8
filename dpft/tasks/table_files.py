"""Files of rows, read one row after the other, and again one by one.

A file may be larger than memory. It is its own store: what is kept of a row is where it begins.
Lines end as Python's text files have it: with a line feed, a carriage return, or both.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shlex
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar

import numpy as np

from dpft.config.errors import DataError
from dpft.config.files import regular
from dpft.tasks.json_list import entries, problem
from dpft.tasks.limits import limited_rows
from dpft.tasks.owners import IntArray
from dpft.tasks.sources import LONGEST
from dpft.tasks.tables import TableRow, brief
from dpft.tasks.views import View

csv.field_size_limit(LONGEST)  # of the whole process; Python's own is 131,072 characters
# How files begin that hold no UTF-8 text: what they are, and what makes text of FILE.
_FOREIGN = (
    ((b"\xff\xfe", b"\xfe\xff"), "UTF-16 text", "iconv -f utf-16 -t utf-8 FILE > NEW"),
    (b"\x1f\x8b", "a gzip file", "gzip -dc < FILE > NEW"),
    (b"PK\x03\x04", "a zip file", "unzip -p FILE > NEW, or save a workbook of Excel as CSV UTF-8"),
    (b"PAR1\x15", "a parquet file", "mv FILE NEW.parquet"),
)
_BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 20
_BLOCK = 1 << 14
_ROWS = 1 << 10  # of a parquet file that are in memory as objects

PlacedRow = tuple[int, int, TableRow]
"""Where a row begins, its number for messages, and the row."""


class TableFile(ABC):
    """One file of rows.

    Args:
        path: of the file. It must stay as it is: what changes it meanwhile is found out by its size
            and its time, and is an error.

    Attributes:
        by_row: whether single rows can be read, and not only the whole.
    """

    by_row: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None

    @abstractmethod
    def scan(self) -> Iterator[PlacedRow]:
        """Every row, in order.

        Raises:
            DataError: naming file and line, if it is missing, of another format, or malformed.
        """

    def rows(self) -> list[TableRow]:
        """Every row, in memory; raises as `scan`."""
        return [row for _, _, row in self.scan()]

    @abstractmethod
    def read(self, positions: IntArray, numbers: IntArray) -> Iterator[TableRow]:
        """The rows that begin at ``positions``, which ascend.

        Raises:
            DataError: if the file is not what was scanned.
        """

    def size(self) -> int:
        """Bytes of the file."""
        with self._open("a table") as file:
            return os.fstat(file.fileno()).st_size

    def digest(self) -> bytes:
        """SHA-256 of the file."""
        digest = hashlib.sha256()
        with self._open("a table") as file:
            while data := file.read(_BUFFER):
                digest.update(data)
        return digest.digest()

    def _open(self, expected: str) -> BinaryIO:
        """The file, which must be the one that was opened first."""
        try:
            file = regular(self.path).open("rb", buffering=_BUFFER)
        except OSError as error:
            raise DataError(
                f"cannot read {self.path}: {error.strerror}; expected {expected}"
            ) from error
        status = os.fstat(file.fileno())
        stamp = status.st_size, status.st_mtime_ns
        self._stamp = self._stamp or stamp
        if stamp != self._stamp:
            file.close()
            raise DataError(
                f"{self.path} was changed while it was used; expected it to stay as it is. Run the "
                "same command again when nothing writes to it any more"
            )
        return file


class Rows(View[TableRow]):
    """Rows of a file, which are read when they are asked for.

    Args:
        file: which holds them.
        positions: where each begins, ascending, ``(n,)``.
        numbers: of each, for messages, ``(n,)``.
    """

    def __init__(self, file: TableFile, positions: IntArray, numbers: IntArray) -> None:
        self.file = file
        self.positions = positions
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.positions)

    def _item(self, index: int) -> TableRow:
        return next(iter(self._part(slice(index, index + 1))))

    def _part(self, chosen: slice) -> Rows:
        return Rows(self.file, self.positions[chosen], self.numbers[chosen])

    def __iter__(self) -> Iterator[TableRow]:
        return self.file.read(self.positions, self.numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process reads the rows itself, if it need not read all of them for it."""
        if self.file.by_row:
            return Rows, (self.file, self.positions, self.numbers)
        return list, (list(self),)


class Listed(TableFile):
    """Rows that are in memory, or that another library reads."""

    by_row = False

    def __init__(self, rows: Sequence[TableRow]) -> None:
        super().__init__(Path())
        self._rows = rows

    def scan(self) -> Iterator[PlacedRow]:
        for index, row in enumerate(self._rows):
            yield index, index + 1, row

    def read(self, positions: IntArray, numbers: IntArray) -> Iterator[TableRow]:
        for position, _ in _pairs(positions, numbers):
            yield self._rows[position]


class JsonLines(TableFile):
    """A JSON object on each line; blank lines are passed over."""

    def scan(self) -> Iterator[PlacedRow]:
        with self._open("one JSON object on each line") as file:
            for number, (at, line) in enumerate(_lines(self.path, file), 1):
                text = _decoded(self.path, number, line)
                if text.strip():
                    yield at, number, self._row(text, number)

    def read(self, positions: IntArray, numbers: IntArray) -> Iterator[TableRow]:
        with self._open("one JSON object on each line") as file:
            for position, number in _pairs(positions, numbers):
                file.seek(position)
                line = file.readline().splitlines()[0]
                yield self._row(_decoded(self.path, number, line), number)

    def _row(self, text: str, number: int) -> TableRow:
        place = f"{self.path}, line {number}"
        return TableRow(place, _object(_parsed(text.rstrip("\r\n"), place), place))


class Json(JsonLines):
    """A list of objects, which is read as a whole; or JSON lines."""

    by_row = False

    @cached_property
    def _items(self) -> list[TableRow] | None:
        with self._open(_LIST) as file:
            file.seek(_start(file))
            first = next((c for c in iter(lambda: file.read(1), b"") if not c.isspace()), b"")
        if first != b"[":
            return None
        listed = entries(self.path, _LIST, _DECODER)
        return [TableRow(place, _object(value, place)) for place, value in listed]

    def scan(self) -> Iterator[PlacedRow]:
        return super().scan() if self._items is None else Listed(self._items).scan()

    def read(self, positions: IntArray, numbers: IntArray) -> Iterator[TableRow]:
        if self._items is None:
            return super().read(positions, numbers)
        return Listed(self._items).read(positions, numbers)


_LIST = "a list of JSON objects, or one on each line"


class Separated(TableFile):
    """Cells between delimiters, in quotes where need be; column names on the first line."""

    def __init__(self, path: Path, delimiter: str) -> None:
        super().__init__(path)
        self._delimiter = delimiter
        self._header: list[str] = []

    def scan(self) -> Iterator[PlacedRow]:
        with self._open("a table") as file:
            lines = _Feed(self.path, file, _start(file), 0)
            reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
            try:
                self._header = next(reader, [])
                _check_header(self.path, self._header)
                while True:
                    at, number = lines.at, lines.number
                    cells = next(reader, None)
                    if cells is None:
                        return
                    if cells:
                        yield at, number + 1, self._row(cells, number + 1)
            except csv.Error as error:
                raise self._malformed(number if self._header else 0, error) from error

    def read(self, positions: IntArray, numbers: IntArray) -> Iterator[TableRow]:
        with self._open("a table") as file:
            lines = _Feed(self.path, file, _start(file), 0)
            reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
            self._header = self._header or next(reader, [])
            for position, number in _pairs(positions, numbers):
                lines.seek(position, number - 1)
                try:
                    cells = next(reader)
                except csv.Error as error:
                    raise self._malformed(number - 1, error) from error
                yield self._row(cells, number)

    def _row(self, cells: Sequence[str], number: int) -> TableRow:
        place = f"{self.path}, line {number}"
        if self._delimiter == "\t":
            _refuse_rows_in_cells(place, cells)
        header = self._header
        if len(cells) != len(header):
            raise DataError(
                f"{place}: got {len(cells)} cells for {len(header)} columns ({', '.join(header)}); "
                "expected one for each. Is a cell with a comma or a line break lacking its quotes?"
            )
        return TableRow(place, dict(zip(header, cells, strict=True)))

    def _malformed(self, line: int, error: csv.Error) -> DataError:
        expected = (
            "cells in double quotes where they hold quotes, delimiters or line breaks. JSON lines "
            "have no such limits"
        )
        if "field larger" in str(error):
            expected = "a quotation mark at the cell's end, or a text that long in JSON lines"
        return DataError(f"{self.path}, after line {line}: {error}; expected {expected}")


class Parquet(TableFile):
    """A parquet file, of which a part of a row group is in memory at a time."""

    def scan(self) -> Iterator[PlacedRow]:
        with self._parquet() as file:
            position = 0
            for rows in limited_rows(self.path, self._batches(file)):
                for values in rows:
                    yield position, position + 1, self._row(position, values)
                    position += 1

    def read(self, positions: IntArray, numbers: IntArray) -> Iterator[TableRow]:
        with self._parquet() as file:
            end = 0
            for group in range(file.num_row_groups):
                start, end = end, end + file.metadata.row_group(group).num_rows
                if np.searchsorted(positions, start) == np.searchsorted(positions, end):
                    continue
                for batch in self._batches(file, row_groups=[group]):
                    low, high = np.searchsorted(positions, (start, start + len(batch)))
                    chosen = positions[low:high]
                    values = batch.take(chosen - start).to_pylist()
                    yield from map(self._row, chosen.tolist(), values)
                    start += len(batch)

    def _row(self, position: int, values: Mapping[str, Any]) -> TableRow:
        return TableRow(f"{self.path}, row {position + 1}", values)

    def _parquet(self) -> Any:
        import pyarrow.parquet
        from pyarrow import ArrowException

        try:
            with self._open("a parquet file"):
                file = pyarrow.parquet.ParquetFile(self.path, pre_buffer=False)
            _check_each_once(str(self.path), file.schema_arrow.names)
        except (OSError, ArrowException) as error:
            raise self._unreadable(error) from error
        return file

    def _batches(self, file: Any, **chosen: Any) -> Iterator[Any]:
        from pyarrow import ArrowException

        try:
            yield from file.iter_batches(batch_size=_ROWS, **chosen)
        except (OSError, ArrowException) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> DataError:
        return DataError(f"{self.path} is not a parquet file that can be read: {error}")


class _Feed:
    """Lines as text for `csv.reader`, which does not say where a row begins.

    Attributes:
        at: where the next line begins.
        number: how many lines stand before it.
    """

    def __init__(self, path: Path, file: BinaryIO, at: int, number: int) -> None:
        self._path = path
        self._file = file
        self.seek(at, number)

    def seek(self, at: int, number: int) -> None:
        self._file.seek(at)
        self.at, self.number = at, number
        self._lines = _lines(self._path, self._file, number)

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        _, line = next(self._lines)
        self.at += len(line)
        self.number += 1
        return _decoded(self._path, self.number, line)


def table_file(path: Path) -> TableFile:
    """A file by its suffix: one of `SUFFIXES`.

    Raises:
        DataError: for another one.
    """
    form = _FORMS.get(path.suffix.lower())
    if form is None:
        raise DataError(f"{path} has suffix {path.suffix!r}; expected one of {', '.join(SUFFIXES)}")
    return form(path)


def read_table(path: Path) -> list[TableRow]:
    """All rows of a file, in memory.

    Raises:
        DataError: naming file and line, if it is missing, of another format, or malformed.
    """
    return table_file(path).rows()


def _lines(path: Path, file: BinaryIO, before: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the lines from here on with their ends, and where each begins.

    Raises:
        DataError: a line is longer than `LONGEST`; ``before`` lines precede the first.
    """
    at, number = file.tell() or file.seek(_start(file)), before
    rest = b""
    while several := file.readline(LONGEST):
        *lines, last = (rest + several).splitlines(keepends=True)
        # Without a line feed more may follow: of the same line, or the second half of its end.
        rest = b"" if last.endswith(b"\n") or len(several) < LONGEST else last
        for line in [*lines, last][: -1 if rest else None]:
            yield at, line
            at, number = at + len(line), number + 1
        if len(rest) >= LONGEST:
            raise DataError(
                f"{path}, line {number + 1} is longer than {LONGEST:,} bytes; expected one record "
                "on each line: divide it, or shorten its text, of which task.max_length tokens are "
                "used"
            )
    if rest:
        yield at, rest


def _start(file: BinaryIO) -> int:
    """Return where the text begins; raise DataError for a file of another format."""
    file.seek(0)
    head = file.read(8)
    for magic, what, mend in _FOREIGN:
        if head.startswith(magic):
            mend = mend.replace("FILE", shlex.quote(str(file.name)))
            raise DataError(f"{file.name} is {what}; expected UTF-8 text: type {mend}")
    return len(_BOM) if head.startswith(_BOM) else 0


def _pairs(positions: IntArray, numbers: IntArray) -> Iterator[tuple[int, int]]:
    for start in range(0, len(positions), _BLOCK):
        block = slice(start, start + _BLOCK)
        yield from zip(positions[block].tolist(), numbers[block].tolist(), strict=True)


def _decoded(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number} is not UTF-8 text ({error}); save it as UTF-8: if it is "
            f"Latin-1 or of Windows, type iconv -f cp1252 -t utf-8 {shlex.quote(str(path))} > NEW"
        ) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(x for x in names if names.count(x) > 1)!r} is there twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


def _parsed(text: str, place: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: {problem(error)}; expected JSON, each column once") from error


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(
            f'{place}: got {brief(value)}; expected a JSON object such as {{"text": "..."}}'
        )
    return value


def _refuse_rows_in_cells(place: str, cells: Sequence[str]) -> None:
    """Refuse a cell that spans rows: a quotation mark that begins a text opens a cell as well."""
    for cell in cells:
        if "\t" in cell and "\n" in cell:
            raise DataError(
                f"{place}: got a cell in quotes with tabs and line breaks, {brief(cell)}; "
                "expected none, since it looks like several rows after a text that begins with a "
                "quotation mark. Double that mark and put quotes around it, or use JSON lines"
            )


def _check_header(path: Path, header: Sequence[str]) -> None:
    if not header:
        raise DataError(f"{path} is empty; expected column names on its first line")
    _check_each_once(f"{path}, line 1", header)


def _check_each_once(place: str, columns: Sequence[str]) -> None:
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        raise DataError(f"{place}: column {twice[0]!r} is there twice; expected each column once")


_FORMS: Mapping[str, Callable[[Path], TableFile]] = MappingProxyType(
    {
        ".jsonl": JsonLines,
        ".json": Json,
        ".csv": partial(Separated, delimiter=","),
        ".tsv": partial(Separated, delimiter="\t"),
        ".parquet": Parquet,
    }
)
SUFFIXES = tuple(_FORMS)
