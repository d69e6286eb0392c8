"""Files of rows, read into Arrow tables on disk.

CSV and TSV become columns of text, JSON the text of each object; parquet stays as it is. The
readers are Python's ``csv`` in strict mode and ``json``. Those of ``datasets`` change cells: pandas
accepts rows that are too short or too long and text after a closing quote, and pyarrow's JSON
reader makes dates of texts, floats of large integers, and nulls of absent keys.
"""

from __future__ import annotations

import codecs
import csv
import errno
import json
import shlex
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpft.config.errors import DataError, suggestion
from dpft.config.foreign import regular
from dpft.config.overrides import override
from dpft.tasks.sources import LONGEST, file_text, well_formed
from dpft.tasks.views import IntArray, View

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")

csv.field_size_limit(LONGEST)  # of the whole process; Python's own is 131,072 characters
_BLOCK = 1 << 12
_OBJECT = "object"  # the column of the text of JSON objects
_LIST = "a list of JSON objects, or one on each line"
_SHOWN = 10  # errors of rows in one message, and places of each


class Faults:
    """Errors of single rows of a file, which are reported together.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.count = path, 0
        self._places: dict[str, list[str]] = {}  # by what is wrong; ten of ten at most

    def add(self, place: str, error: str | DataError) -> None:
        """Add what is wrong with the row at a place; a DataError begins with the place."""
        self.count += 1
        what = str(error).removeprefix(place).removeprefix(":").strip()
        if what in self._places or len(self._places) < _SHOWN:
            places = self._places.setdefault(what, [])
            places += [place.removeprefix(f"{self._path}, ")] if len(places) <= _SHOWN else []

    def check(self, rows: int | None = None) -> None:
        """Raise a DataError that names all errors, if there are any.

        If all ``rows`` have the same one, it is the file's: the first row stands for all.
        """
        if not self._places:
            return
        what, (place, *_) = next(iter(self._places.items()))
        if self.count == 1 or (len(self._places) == 1 and self.count == rows):
            link = "" if what.startswith(",") else ": "  # ", message 2: its text is ..."
            raise DataError(f"{self._path}, {place}{link}{what}")
        lines = [
            f"{', '.join(places[:_SHOWN])}{' and others' * (len(places) > _SHOWN)}: {what}"
            for what, places in self._places.items()
        ]
        known = "\n  ".join(lines)
        raise DataError(f"{self._path}: {self.count:,} rows cannot be used:\n  {known}")


@dataclass(frozen=True)
class TableRow:
    """One row."""

    place: str  # file and line, for messages
    values: Mapping[str, Any]  # cells by column
    error: DataError | None = None  # why the row could not be read

    def cell(self, column: str, setting: str) -> Any:
        """Return the cell of a column, which ``setting`` names."""
        if self.error is not None:
            raise self.error
        if column not in self.values:
            names = [*map(str, self.values)]
            meant = next((n for n in names if n.strip().casefold() == column.casefold()), "NAME")
            advice = f"Type {shlex.quote(override(setting, meant))}"
            if any(len(name.split()) > 2 for name in names):  # a sentence
                advice = f"If the first line is a row, put the names of columns before it. {advice}"
            if mark := next((m for m in ";,\t|" if any(m in name for name in names)), None):
                advice += f", or task.delimiter={mark!r} if that separates cells"
            for name, value in self.values.items():
                entry = value[0] if isinstance(value, list) and value else None
                if isinstance(entry, Mapping) and column in entry:
                    taken = shlex.quote(f".[{json.dumps(name)}][]")
                    advice = f"{name!r} has a list of records: type jq -c {taken} FILE > NEW.jsonl"
            found = ", ".join(map(repr, names)) or "none"
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


class Rows(View[TableRow]):
    """Rows of an Arrow table, made on access."""

    def __init__(
        self,
        path: Path,
        table: pa.Table,
        unit: str = "row",
        numbers: IntArray | None = None,
        parse: Callable[[dict[str, Any], str], Mapping[str, Any]] | None = None,
    ) -> None:
        """Number rows from 1, or by ``numbers``; ``parse`` makes values from cells and a place."""
        self.path, self._table, self._unit, self._parse = path, table, unit, parse
        self._numbers = np.arange(1, table.num_rows + 1) if numbers is None else numbers
        self._chosen = np.arange(table.num_rows)

    def take(self, indices: IntArray | slice) -> Rows:
        """Return some of these rows."""
        rows = Rows(self.path, self._table, self._unit, self._numbers, self._parse)
        rows._chosen = self._chosen[indices]
        return rows

    def _part(self, chosen: slice) -> Rows:
        return self.take(chosen)

    def __len__(self) -> int:
        return len(self._chosen)

    def _item(self, index: int) -> TableRow:
        return next(iter(self.take(slice(index, index + 1))))

    def __iter__(self) -> Iterator[TableRow]:
        for start in range(0, len(self), _BLOCK):
            chosen = self._chosen[start : start + _BLOCK]
            first, count = int(chosen.min()), int(np.ptp(chosen)) + 1
            part = self._table.slice(first, count)
            if count > len(chosen):
                part = part.combine_chunks().take(pa.array(chosen - first))
            numbers = self._numbers[chosen].tolist()
            for number, cells in zip(numbers, part.to_pylist(), strict=True):
                place = f"{self.path}, {self._unit} {number}"
                try:
                    values = cells if self._parse is None else self._parse(cells, place)
                    yield TableRow(place, values)
                except DataError as error:
                    yield TableRow(place, {}, error)


def read_table(path: Path, delimiter: str | None = None) -> Rows:
    """Return all rows of a file with one of the `SUFFIXES`; raise DataError for others."""
    match path.suffix.lower():
        case ".csv" | ".tsv":
            return read_separated(path, delimiter or separator(path))
        case ".jsonl" | ".json":
            return read_objects(path)
        case ".parquet":
            return read_parquet(path)
    raise DataError(f"{path} has suffix {path.suffix!r}; expected one of {', '.join(SUFFIXES)}")


def separator(path: Path) -> str:
    """Return what separates the cells of a file: a tab in TSV, else a comma if line 1 has one."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    with _open(path) as file:
        head = file.readline(1 << 16).decode("utf-8", "replace")
    found = [mark for mark in ",;\t|" if mark in head]
    return found[0] if found else ","


def read_separated(path: Path, delimiter: str) -> Rows:
    """Return rows of cells, in quotes where need be; the first line has the names of columns."""
    reader = csv.reader(_lines(path), delimiter=delimiter, strict=True)
    line, faults = 0, Faults(path)
    one_text = ", or type task.delimiter='|' if each line is one text"

    def rows() -> Iterator[tuple[int, Sequence[str]]]:
        nonlocal line
        for cells in reader:
            place = f"{path}, line {line + 1}"
            # A quotation mark that begins a text opens a cell as well, and the rows up to the next
            # mark are then part of it.
            swallowed = [c for c in cells if "\t" in c and "\n" in c] if delimiter == "\t" else []
            if swallowed:
                raise DataError(
                    f"{place}: got a cell in quotes with tabs and line breaks, "
                    f"{brief(swallowed[0])}; expected none, since it looks like several rows after "
                    "a text that begins with a quotation mark. Double that mark and put quotes "
                    "around it, or use JSON lines"
                )
            if len(cells) == len(header):
                yield line + 1, cells
            elif cells:
                faults.add(
                    place,
                    f"got {len(cells)} cells for {len(header)} columns ({', '.join(header)}); "
                    f"expected one for each. Put quotes around cells with a {delimiter!r} or a "
                    f"line break{one_text if len(header) == 1 else ''}",
                )
            line = reader.line_num
        faults.check()

    try:
        header = next(filter(None, reader), [])
        if header[:1] == ["sep="]:  # Excel's first line names the delimiter
            header = next(filter(None, reader), [])
        if not header:
            raise DataError(f"{path} is empty; expected column names on its first line")
        _check_each_once(f"{path}, line 1", header)
        line = reader.line_num
        return _rows(path, header, rows(), "line")
    except csv.Error as error:
        if "new-line character" in str(error):  # the words of csv, whose advice is for a program
            raise DataError(
                f"{path}, after line {line}: a carriage return ends a line; expected lines that "
                f"end in LF or CRLF: type tr '\\r' '\\n' < {shlex.quote(str(path))} > NEW"
            ) from error
        raise DataError(
            f"{path}, after line {line}: {error}; expected cells in double quotes where they hold "
            "quotes, delimiters or line breaks, and each opening mark to be closed. JSON lines "
            "have no such limits"
        ) from error


def read_objects(path: Path) -> Rows:
    """Return JSON objects: one on each line that is not blank, or a list, which is read whole."""
    with _open(path) as file:
        head = file.read(1 << 10).removeprefix(b"\xef\xbb\xbf")
    if not head.lstrip().startswith(b"["):
        lines = enumerate(_lines(path), 1)
        found = ((n, (line.rstrip("\r\n"),)) for n, line in lines if line.strip())
        return _rows(path, [_OBJECT], found, "line", _parsed)
    try:
        listed = json.loads(file_text(path, _LIST), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{path}{line}: {_problem(error)}; expected {_LIST}") from error
    entries = ((n, (json.dumps(entry),)) for n, entry in enumerate(listed, 1))
    return _rows(path, [_OBJECT], entries, "entry", _parsed)


def read_parquet(path: Path) -> Rows:
    """Return the rows of a parquet file; raise DataError if it is not one."""
    try:
        with _open(path) as opened, pq.ParquetFile(opened) as file:
            _check_each_once(str(path), file.schema_arrow.names)
            batches = file.iter_batches(batch_size=_BLOCK)
            return Rows(path, on_disk(file.schema_arrow, batches))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a parquet file that can be read: {error}") from error


def on_disk(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return batches as a table in a temporary file, of which memory holds what is used.

    Only this user can read the file, and it has no name once it is written, so that nothing of it
    is left when the process ends. The ``ArrowWriter`` of ``datasets`` gathers rows by
    number, not by size: 300 texts of 4 MB took 3.4 GB with it, and take 0.2 GB here.
    """
    try:
        with tempfile.NamedTemporaryFile(prefix="dpft-") as file:
            with pa.ipc.new_stream(file, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            file.flush()
            return pa.ipc.open_stream(pa.memory_map(file.name)).read_all()
    except OSError as error:
        if error.errno == errno.ENOSPC:
            error.filename = tempfile.gettempdir()
        raise


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def brief(value: Any) -> str:
    """Return a value shortened for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _rows(
    path: Path,
    columns: Sequence[str],
    found: Iterable[tuple[int, Sequence[str]]],
    unit: str,
    parse: Callable[[dict[str, Any], str], Mapping[str, Any]] | None = None,
) -> Rows:
    """Return rows of text from numbers and cells."""
    schema = pa.schema([(name, pa.string()) for name in columns])
    numbers = array("Q")

    def batches() -> Iterator[pa.RecordBatch]:
        block: list[Sequence[str]] = []
        size = 0
        for number, cells in chain(found, [(0, None)]):
            if cells is not None:
                numbers.append(number)
                block.append(cells)
                size += sum(map(len, cells))
            if block and (cells is None or len(block) == _BLOCK or size > LONGEST):
                texts = [pa.array(column, pa.string()) for column in zip(*block, strict=True)]
                yield pa.record_batch(texts, schema=schema)
                block, size = [], 0

    table = on_disk(schema, batches())
    return Rows(path, table, unit, np.array(numbers, np.int64), parse)


def _parsed(cells: dict[str, Any], place: str) -> Mapping[str, Any]:
    try:
        value = json.loads(cells[_OBJECT], object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        expected = "expected JSON, an object on each line"
        raise DataError(f"{place}: {_problem(error)}; {expected}") from error
    if not isinstance(value, dict):
        raise DataError(
            f'{place}: got {brief(value)}; expected a JSON object such as {{"text": "..."}}'
        )
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; ValueError: a key is there twice, of which the last would count."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {brief(twice)} is there twice")
    return found


def _problem(error: ValueError | RecursionError) -> str:
    """Return what is wrong with a text that is not JSON, as a clause."""
    deep = isinstance(error, RecursionError)
    return "it is nested too deep" if deep else str(error).partition(":")[0]


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file with their ends, without a byte order mark."""
    with _open(path) as file:
        number, utf8 = 0, False  # whether a line has other characters than those of ASCII
        while line := file.readline(LONGEST + 1):
            number += 1
            if len(line) > LONGEST:
                raise DataError(
                    f"{path}, line {number} is longer than {LONGEST:,} bytes; expected one record "
                    "on each line: divide it, or shorten its text"
                )
            if number == 1:
                _check_text(path, line)
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                utf8 |= any(_in_utf8(other) for other in file)
                advice = f"type iconv -f cp1252 -t utf-8 {shlex.quote(str(path))} > NEW"
                if min(line) < ord("\t"):
                    advice = "nor is it text in another encoding: save the table as CSV UTF-8"
                elif utf8:
                    advice = "other lines are: convert its parts before they are joined"
                raise DataError(
                    f"{path}, line {number} is not UTF-8 text ({error}); {advice}"
                ) from error
            utf8 |= not line.isascii()


def _check_text(path: Path, line: bytes) -> None:
    """Raise DataError if a file that begins with this line is known to be no UTF-8 table."""
    file = shlex.quote(str(path))
    to_utf8 = "type iconv -f utf-{} -t utf-8 {} > NEW".format
    known: dict[bytes | tuple[bytes, ...], tuple[str, str]] = {
        b"PK\x03\x04": ("a ZIP archive, as workbooks are", "save it as CSV UTF-8, or unpack it"),
        b"\x1f\x8b": ("packed by gzip", f"type gunzip -c {file} > NEW"),
        b"PAR1\x15": ("a parquet file", "give it the suffix .parquet"),
        codecs.BOM_UTF32_LE: ("UTF-32 text", to_utf8("32", file)),  # begins as UTF-16 does
        (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE): ("UTF-16 text", to_utf8("16", file)),
        line[:1] + b"\0": ("UTF-16 text without its mark", to_utf8("16le", file)),
        b"version https://git-lfs": ("a pointer of Git LFS", "type git lfs pull in its repository"),
        b"<!DOCTYPE html": ("a web page", "download the file itself"),
    }
    for start, (what, advice) in known.items():
        if line.startswith(start):
            raise DataError(f"{path} is {what}; expected a table in UTF-8: {advice}")


def _in_utf8(line: bytes) -> bool:
    """Return whether a line has characters beyond ASCII, as UTF-8."""
    try:
        return not line.isascii() and bool(line.decode())
    except UnicodeDecodeError:
        return False


def _open(path: Path) -> BinaryIO:
    try:
        return regular(path).open("rb")
    except OSError as error:
        absent = isinstance(error, FileNotFoundError)
        names = [file.name for file in path.parent.glob("*.*")] if absent else []
        raise DataError(
            f"cannot read {path}: {error.strerror}; expected a table{suggestion(path.name, names)}"
        ) from error


def _check_each_once(place: str, columns: Sequence[str]) -> None:
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise DataError(f"{place}: column {twice!r} is there twice; expected each column once")
