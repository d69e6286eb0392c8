"""Files of rows, read into Arrow tables.

CSV and TSV become columns of text, as Python's ``csv`` reads them in strict mode: nothing becomes a
number or a missing value. JSON is kept as the text of each object, and parquet as it is.
"""

from __future__ import annotations

import csv
import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpft.config.errors import DataError
from dpft.config.files import regular
from dpft.tasks.sources import LONGEST, file_text, well_formed
from dpft.tasks.views import IntArray, View


@dataclass(frozen=True)
class TableRow:
    """One row."""

    place: str  # file and line, for messages
    values: Mapping[str, Any]  # cells by column

    def cell(self, column: str, setting: str) -> Any:
        """Return the cell of a column, which ``setting`` names."""
        if column not in self.values:
            found = ", ".join(map(repr, self.values)) or "none"
            advice = f"Type {setting}=NAME, or rename it if other files of the task call it so"
            only = str(next(iter(self.values))) if len(self.values) == 1 else ""
            if (mark := next((m for m in ";|\t" if m in only), None)) is not None:
                advice = f"Cells seem to be separated by {mark!r}; expected commas"
            raise DataError(f"{self.place}: no column {column!r}; found {found}. {advice}")
        return self.values[column]

    def text(self, column: str, setting: str) -> str:
        """Return a text that is not empty; raise DataError for anything else."""
        value = self.cell(column, setting)
        if not isinstance(value, str) or not value.strip():
            got = "empty" if isinstance(value, str) else f"{brief(value)} ({type(value).__name__})"
            raise DataError(f"{self.place}: column {column!r} is {got}; expected text")
        if value.isascii() and len(value) <= LONGEST:  # quick, for ten million texts
            return value
        return well_formed(value, f"{self.place}, column {column!r}")

    def name(self, column: str, setting: str) -> str:
        """Return the name of a user or a class: a text or a whole number, as text."""
        value = self.cell(column, setting)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str):
            return self.text(column, setting)
        got = "missing" if value is None else f"{brief(value)} ({type(value).__name__})"
        raise DataError(
            f"{self.place}: column {column!r} is {got}; expected one name, a text or a whole number"
        )


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def brief(value: Any) -> str:
    """Return a value shortened for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


csv.field_size_limit(LONGEST)  # of the whole process; Python's own is 131,072 characters
_BLOCK = 1 << 12
# Columns that no file has: where each row is, for messages, and the text of a JSON object.
_PLACE, _OBJECT = "\0place", "\0object"
_LIST = "a list of JSON objects, or one on each line"


class Rows(View[TableRow]):
    """Rows of a file, made from an Arrow table on access."""

    def __init__(self, file: TableFile, table: pa.Table, chosen: IntArray | None = None) -> None:
        self._file = file
        self._table = table
        self._chosen = np.arange(table.num_rows) if chosen is None else chosen

    def __len__(self) -> int:
        return len(self._chosen)

    @property
    def path(self) -> Path:
        return self._file.path

    def take(self, indices: IntArray | slice) -> Rows:
        """Return some of these rows."""
        return Rows(self._file, self._table, self._chosen[indices])

    def _part(self, chosen: slice) -> Rows:
        return self.take(chosen)

    def _item(self, index: int) -> TableRow:
        return next(iter(self.take(slice(index, index + 1))))

    def __iter__(self) -> Iterator[TableRow]:
        for start in range(0, len(self), _BLOCK):
            chosen = self._chosen[start : start + _BLOCK]
            first, count = int(chosen.min()), int(np.ptp(chosen)) + 1
            part = self._table.slice(first, count)
            if count > len(chosen):
                part = part.combine_chunks().take(pa.array(chosen - first))
            for cells in part.to_pylist():
                place = f"{self._file.path}, {cells.pop(_PLACE)}"
                yield TableRow(place, self._file.values(cells, place))


class TableFile(ABC):
    """One file of rows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, each with its place in the column `_PLACE`; raise DataError."""

    def values(self, cells: dict[str, Any], place: str) -> Mapping[str, Any]:
        """Return the cells of a row by column."""
        return cells

    def rows(self) -> Rows:
        """Return all rows."""
        empty = pa.record_batch({_PLACE: pa.array([], pa.string())})
        return Rows(self, pa.Table.from_batches(list(self.batches()) or [empty]))

    def _lines(self) -> Iterator[str]:
        """Yield the lines of a UTF-8 file with their ends, without a byte order mark."""
        with self._open() as file:
            number = 0
            while line := file.readline(LONGEST + 1):
                number += 1
                if len(line) > LONGEST:
                    raise DataError(
                        f"{self.path}, line {number} is longer than {LONGEST:,} bytes; expected "
                        "one record on each line: divide it, or shorten its text"
                    )
                try:
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{self.path}, line {number} is not UTF-8 text ({error}); unpack an "
                        "archive, save a workbook as CSV UTF-8, or type iconv -f cp1252 -t utf-8 "
                        f"{shlex.quote(str(self.path))} > NEW (or utf-16 in place of cp1252)"
                    ) from error

    def _open(self) -> BinaryIO:
        try:
            return regular(self.path).open("rb")
        except OSError as error:
            raise DataError(
                f"cannot read {self.path}: {error.strerror}; expected a table"
            ) from error


class JsonLines(TableFile):
    """A JSON object on each line; blank lines are skipped."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        lines = enumerate(self._lines(), 1)
        placed = ((f"line {n}", line.rstrip("\r\n")) for n, line in lines if line.strip())
        return _batches([_OBJECT], placed)

    def values(self, cells: dict[str, Any], place: str) -> Mapping[str, Any]:
        try:
            value = json.loads(cells[_OBJECT])
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: {_problem(error)}; expected JSON") from error
        if not isinstance(value, dict):
            raise DataError(
                f'{place}: got {brief(value)}; expected a JSON object such as {{"text": "..."}}'
            )
        return value


class Json(JsonLines):
    """A list of objects, which is read as a whole; or JSON lines."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        with self._open() as file:
            head = file.read(1 << 10).removeprefix(b"\xef\xbb\xbf")
        if not head.lstrip().startswith(b"["):
            return super().batches()
        try:
            listed = json.loads(file_text(self.path, _LIST))
        except (ValueError, RecursionError) as error:
            line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            raise DataError(f"{self.path}{line}: {_problem(error)}; expected {_LIST}") from error
        numbered = enumerate(listed, 1)
        return _batches([_OBJECT], ((f"entry {n}", json.dumps(entry)) for n, entry in numbered))


class Separated(TableFile):
    """Cells between delimiters, in quotes where need be; column names on the first line."""

    def __init__(self, path: Path, delimiter: str) -> None:
        super().__init__(path)
        self._delimiter = delimiter

    def batches(self) -> Iterator[pa.RecordBatch]:
        reader = csv.reader(self._lines(), delimiter=self._delimiter, strict=True)
        line = 0
        try:
            header = next(reader, [])
            if not header:
                raise DataError(f"{self.path} is empty; expected column names on its first line")
            _check_each_once(f"{self.path}, line 1", header)
            line = reader.line_num

            def placed() -> Iterator[tuple[str, ...]]:
                nonlocal line
                for cells in reader:
                    if cells:
                        self._check(cells, header, f"{self.path}, line {line + 1}")
                        yield f"line {line + 1}", *cells
                    line = reader.line_num

            yield from _batches(header, placed())
        except csv.Error as error:
            expected = (
                "cells in double quotes where they hold quotes, delimiters or line breaks, and "
                "each opening mark to be closed. JSON lines have no such limits"
            )
            raise DataError(
                f"{self.path}, after line {line}: {error}; expected {expected}"
            ) from error

    def _check(self, cells: Sequence[str], header: Sequence[str], place: str) -> None:
        if len(cells) != len(header):
            raise DataError(
                f"{place}: got {len(cells)} cells for {len(header)} columns ({', '.join(header)}); "
                "expected one for each. Is a cell with a comma or a line break lacking its quotes?"
            )
        if self._delimiter != "\t":
            return
        # A quotation mark that begins a text opens a cell as well, and the rows up to the next
        # mark are then part of it.
        if swallowed := next((cell for cell in cells if "\t" in cell and "\n" in cell), None):
            raise DataError(
                f"{place}: got a cell in quotes with tabs and line breaks, {brief(swallowed)}; "
                "expected none, since it looks like several rows after a text that begins with a "
                "quotation mark. Double that mark and put quotes around it, or use JSON lines"
            )


class Parquet(TableFile):
    """A parquet file."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            with self._open() as opened, pq.ParquetFile(opened) as file:
                _check_each_once(str(self.path), file.schema_arrow.names)
                row = 0
                for batch in file.iter_batches(batch_size=_BLOCK):
                    places = [f"row {row + n}" for n in range(1, len(batch) + 1)]
                    yield batch.add_column(0, _PLACE, pa.array(places, pa.string()))
                    row += len(batch)
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"{self.path} is not a parquet file that can be read: {error}"
            ) from error


class Loaded(TableFile):
    """Rows of a data set of ``datasets``."""

    def __init__(self, rows: Any, where: str) -> None:
        super().__init__(Path(where))
        self._rows = rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        table = self._rows.with_format("arrow")[:]
        places = [f"row {n}" for n in range(1, table.num_rows + 1)]
        yield from table.add_column(0, _PLACE, pa.array(places, pa.string())).to_batches()


def read_table(path: Path) -> Rows:
    """Return all rows of a file with one of the `SUFFIXES`; raise DataError for others."""
    form = _FORMS.get(path.suffix.lower())
    if form is None:
        raise DataError(f"{path} has suffix {path.suffix!r}; expected one of {', '.join(SUFFIXES)}")
    return form(path).rows()


def _batches(columns: Sequence[str], rows: Iterable[tuple[str, ...]]) -> Iterator[pa.RecordBatch]:
    """Yield columns of text, after the places of rows; one batch at least."""
    names = [_PLACE, *columns]

    def batch(block: list[tuple[str, ...]]) -> pa.RecordBatch:
        texts = zip(*block, strict=True) if block else [()] * len(names)
        return pa.record_batch([pa.array(text, pa.string()) for text in texts], names)

    block: list[tuple[str, ...]] = []
    size = 0
    for row in rows:
        block.append(row)
        size += sum(map(len, row))
        if len(block) == _BLOCK or size > LONGEST:
            yield batch(block)
            block, size = [], 0
    yield batch(block)


def _check_each_once(place: str, columns: Sequence[str]) -> None:
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise DataError(f"{place}: column {twice!r} is there twice; expected each column once")


def _problem(error: ValueError | RecursionError) -> str:
    """Return what is wrong with a text that `json` refused, as a clause."""
    deep = isinstance(error, RecursionError)
    return "it is nested too deep" if deep else str(error).partition(":")[0]


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
