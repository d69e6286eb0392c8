"""Tables of one's own: JSON lines, CSV, TSV and parquet files, as rows that know where they stand.

Nothing is guessed: a cell that is missing, empty or of another type is an error that names file and
line, since a silently skipped or merged record would change what the guarantee is about.
"""

from __future__ import annotations

import csv
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dpft.errors import DataError
from dpft.tasks.sources import parquet, text_lines, well_formed


@dataclass(frozen=True)
class TableRow:
    """One row.

    Attributes:
        place: file and line, for messages.
        values: cells by column.
    """

    place: str
    values: Mapping[str, Any]

    def cell(self, column: str, setting: str) -> Any:
        """The cell of a column.

        Args:
            column: its name.
            setting: what names the column, for the message.

        Raises:
            DataError: if there is no such column; lists those that there are.
        """
        if column not in self.values:
            found = ", ".join(map(str, self.values)) or "none"
            raise DataError(
                f"{self.place}: no column {column!r}; found {found}. Type {setting}=NAME"
            )
        return self.values[column]

    def text(self, column: str, setting: str) -> str:
        """A text that is not empty.

        Raises:
            DataError: for anything else.
        """
        value = self.cell(column, setting)
        if not isinstance(value, str):
            raise DataError(
                f"{self.place}: column {column!r} is {_brief(value)} ({type(value).__name__}); "
                "expected text"
            )
        if not value.strip():
            raise DataError(
                f"{self.place}: column {column!r} is empty; expected text. Remove the row, or fill "
                "it"
            )
        return well_formed(value, f"{self.place}, column {column!r}")

    def name(self, column: str, setting: str) -> str:
        """What names a user or a class: a text or a whole number, as text.

        Raises:
            DataError: for anything else, a list of several among it.
        """
        value = self.cell(column, setting)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str):
            return self.text(column, setting)
        got = "missing" if value is None else f"{_brief(value)} ({type(value).__name__})"
        raise DataError(
            f"{self.place}: column {column!r} is {got}; expected one name, a text or a whole number"
        )


def read_table(path: Path) -> list[TableRow]:
    """The rows of a file, by its suffix: one of `SUFFIXES`.

    Raises:
        DataError: naming file and line, if it is missing, of another format, or malformed.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path} has suffix {path.suffix!r}; expected one of {', '.join(SUFFIXES)}")
    return list(reader(path))


def mappings(rows: Iterable[Mapping[str, Any]], where: str) -> list[TableRow]:
    """Rows of a data set that was read by other means."""
    return [TableRow(f"{where}, row {number}", row) for number, row in enumerate(rows, 1)]


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def check_names(rows: Sequence[TableRow], names: Sequence[str]) -> None:
    """Refuse two names of users that people would read as one.

    One person under two names is two units, each protected by itself: less than was promised.

    Raises:
        DataError: naming both places, for names that differ in spaces, Unicode form or characters
            that are not seen only.
    """
    first: dict[str, tuple[str, str]] = {}
    for row, name in zip(rows, names, strict=True):
        other, place = first.setdefault(_seen(name), (name, row.place))
        if other != name:
            raise DataError(
                f"{row.place}: user {name!a} differs from {other!a} ({place}) only in spaces, "
                "Unicode form or characters that are not seen; expected one spelling for each "
                "user, since two names are two users"
            )


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
    visible = "".join(" " if c.isspace() or c == _BLANK else c for c in name if not _is_unseen(c))
    normal = unicodedata.normalize("NFKC", visible)
    return " ".join("".join(c for c in normal if c.isspace() or c.isprintable()).split())


def _json_lines(path: Path) -> Iterator[TableRow]:
    lines = text_lines(path, "one JSON object on each line")
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = f"{path}, line {number}"
            yield TableRow(place, _object(_parsed(line, place), place))


def _json(path: Path) -> Iterator[TableRow]:
    """A list of objects, or JSON lines."""
    text = "\n".join(text_lines(path, "a list of JSON objects, or one on each line"))
    if not text.lstrip().startswith("["):
        yield from _json_lines(path)
        return
    for number, value in enumerate(_parsed(text, str(path)), 1):
        place = f"{path}, item {number}"
        yield TableRow(place, _object(value, place))


def _parsed(text: str, place: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(f"{place}: {twice!r} is there twice; expected each column once")
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: {error}; expected JSON") from error


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(
            f'{place}: got {_brief(value)}; expected a JSON object such as {{"text": "..."}}'
        )
    return value


def _separated(delimiter: str) -> Callable[[Path], Iterator[TableRow]]:
    def read(path: Path) -> Iterator[TableRow]:
        line = 0
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file, delimiter=delimiter, strict=True)
                header = next(reader, [])
                _check_header(path, header)
                line = reader.line_num
                for cells in reader:
                    place = f"{path}, line {line + 1}"
                    line = reader.line_num
                    if cells:
                        if delimiter == "\t":
                            _refuse_rows_in_cells(place, cells)
                        yield _row(place, header, cells)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}; expected a table") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text ({error})") from error
        except csv.Error as error:
            raise DataError(
                f"{path}, after line {line}: {error}; expected cells in double quotes where they "
                "hold quotes, delimiters or line breaks. JSON lines have no such limits"
            ) from error

    return read


def _refuse_rows_in_cells(place: str, cells: Sequence[str]) -> None:
    """Refuse a cell that spans rows: a quotation mark that begins a text opens a cell as well."""
    for cell in cells:
        if "\t" in cell and "\n" in cell:
            raise DataError(
                f"{place}: got a cell in quotes with tabs and line breaks, {_brief(cell)}; "
                "expected none, since it looks like several rows after a text that begins with a "
                "quotation mark. Double that mark and put quotes around it, or use JSON lines"
            )


def may_hold_rows(row: TableRow) -> bool:
    """Whether a cell of a CSV file has a line that looks like a row of the file.

    A quotation mark that begins a text opens a cell, which ends at the next such mark: the rows
    between are then no rows. In a TSV file that is refused (a text hardly has tabs); a text may
    have a line with as many commas as the file has, so that here it can only be told.
    """
    if ".csv, line " not in row.place or len(row.values) < 2:
        return False
    lines = [x for text in row.values.values() if "\n" in text for x in text.split("\n")[1:]]
    return any(len(next(csv.reader([x]), [])) == len(row.values) for x in lines)


def _check_header(path: Path, header: Sequence[str]) -> None:
    if not header:
        raise DataError(f"{path} is empty; expected column names on its first line")
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise DataError(
            f"{path}, line 1: column {twice[0]!r} is there twice; expected each column once"
        )


def _row(place: str, header: Sequence[str], cells: Sequence[str]) -> TableRow:
    if len(cells) != len(header):
        raise DataError(
            f"{place}: got {len(cells)} cells for {len(header)} columns ({', '.join(header)}); "
            "expected one for each. Is a cell with a comma or a line break lacking its quotes?"
        )
    return TableRow(place, dict(zip(header, cells, strict=True)))


def _parquet(path: Path) -> Iterator[TableRow]:
    yield from mappings(parquet(path), str(path))


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


_READERS: Mapping[str, Callable[[Path], Iterator[TableRow]]] = MappingProxyType(
    {
        ".jsonl": _json_lines,
        ".json": _json,
        ".csv": _separated(","),
        ".tsv": _separated("\t"),
        ".parquet": _parquet,
    }
)
SUFFIXES = tuple(_READERS)
