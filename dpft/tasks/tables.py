"""Rows of the user's own tables.

A cell that is missing, empty or of another type is an error that names file and line: a record that
is skipped or merged without notice would change what the guarantee is about.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.config.errors import DataError
from dpft.tasks.sources import LONGEST, well_formed


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
