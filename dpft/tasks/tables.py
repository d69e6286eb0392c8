"""Rows of tables of one's own, which know where they stand.

Nothing is guessed: a cell that is missing, empty or of another type is an error that names file and
line, since a silently skipped or merged record would change what the guarantee is about.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.config.errors import DataError
from dpft.tasks.sources import LONGEST, well_formed
from dpft.tasks.views import View

# As in files, see `dpft.tasks.table_files`.
_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True)
class TableRow:
    """One row.

    Attributes:
        place: file and line, for messages.
        values: cells by column.
        settled: whether the settings of columns were chosen for other rows, those of training:
            these are then to have the same columns.
    """

    place: str
    values: Mapping[str, Any]
    settled: bool = False

    def cell(self, column: str, setting: str) -> Any:
        """The cell of a column, which ``setting`` names.

        Raises:
            DataError: if there is no such column; lists those that there are.
        """
        if column not in self.values:
            found = ", ".join(map(repr, self.values)) or "none"
            names = f"Type {setting}=NAME"
            if self.settled:
                names = f"Rename the one that is meant to {column!r}, its name in the training data"
            only = str(next(iter(self.values))) if len(self.values) == 1 else ""
            if (mark := next((m for m in ";|\t" if m in only), None)) is not None:
                names = f"Cells seem to be separated by {mark!r}; expected commas"
            raise DataError(f"{self.place}: no column {column!r}; found {found}. {names}")
        return self.values[column]

    def text(self, column: str, setting: str) -> str:
        """A text that is not empty.

        Raises:
            DataError: for anything else.
        """
        value = self.cell(column, setting)
        if not isinstance(value, str):
            raise DataError(
                f"{self.place}: column {column!r} is {brief(value)} ({type(value).__name__}); "
                "expected text"
            )
        if not value.strip():
            raise DataError(
                f"{self.place}: column {column!r} is empty; expected text. Remove the row, or fill "
                "it"
            )
        if value.isascii() and len(value) <= LONGEST:  # quick, for ten million texts
            return value
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
        got = "missing" if value is None else f"{brief(value)} ({type(value).__name__})"
        raise DataError(
            f"{self.place}: column {column!r} is {got}; expected one name, a text or a whole number"
        )


class Mappings(View[TableRow]):
    """Rows of a data set that another library reads, each when it is asked for."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], where: str) -> None:
        self._rows = rows
        self._where = where

    def __len__(self) -> int:
        return len(self._rows)

    def _item(self, index: int) -> TableRow:
        return TableRow(f"{self._where}, row {index + 1}", self._rows[index])

    def __iter__(self) -> Iterator[TableRow]:
        # Several times as fast as to ask for one after the other.
        for number, row in enumerate(self._rows, 1):
            yield TableRow(f"{self._where}, row {number}", row)


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def is_of_csv(row: TableRow) -> bool:
    """Whether the row is of a CSV file."""
    return ".csv, line " in row.place.lower()


def may_hold_rows(row: TableRow) -> bool:
    """Whether a cell of a CSV file has a line that looks like a row of the file.

    A quotation mark that begins a text opens a cell, which ends at the next such mark: the rows
    between are then no rows. In a TSV file that is refused (a text hardly has tabs); a text may
    have a line with as many commas as the file has, so that it is only reported.
    """
    if not is_of_csv(row) or len(row.values) < 2:
        return False
    broken = [text for text in row.values.values() if "\n" in text or "\r" in text]
    lines = [line for text in broken for line in _LINE_END.split(text)[1:]]
    return any(len(next(csv.reader([x]), [])) == len(row.values) for x in lines)


def brief(value: Any) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
