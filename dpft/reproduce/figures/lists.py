"""Where a figure's numbers come from: parts of the papers' tables, and lists of runs of its own.

A list has a table's form (`dpft.reproduce.papers`), so that planning, missing runs and matching of
records are those of tables. Its points were never printed as numbers; ``printed`` may be left out
of a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError
from dpft.reproduce import papers
from dpft.reproduce.papers import PaperTable
from dpft.reproduce.papers.reader import parse_table, strict_yaml
from dpft.reproduce.papers.schema import Label, Row

ROOT = Path(__file__).resolve().parent / "data"
# Of a number that is not known, in a table whose runs are wanted all the same.
UNKNOWN = math.nan


Rows = Mapping[str, tuple[Label, ...]]


@dataclass(frozen=True)
class Part:
    """Rows and columns of a table, or a list.

    Attributes:
        table: as it is typed, ``bu2023/4``; of a list, the figure's name.
        columns: their keys; none: all.
        rows: labels, each with the values that are wanted; a row must have one of each.
        own: whether it is a list of `ROOT`, no printed table.
    """

    table: str
    columns: tuple[str, ...] = ()
    rows: Rows = field(default_factory=dict)
    own: bool = False

    def load(self) -> PaperTable:
        """The table with these rows and columns alone.

        Raises:
            PaperError: if its file does not follow the schema.
        """
        paper, number = self.table.split("/", 1)
        path = ROOT / paper / f"{number}.yaml"
        whole = read_list(path) if self.own else papers.load(paper, number)
        rows = tuple(row for row in whole.rows if self._wants(row))
        columns = tuple(c for c in whole.columns if not self.columns or c.key in self.columns)
        if not rows or not columns:
            raise ConfigError(f"{self.table} has nothing of {dict(self.rows)}, {self.columns}")
        return replace(whole, rows=rows, columns=columns)

    def _wants(self, row: Row) -> bool:
        return all(row.labels.get(key) in values for key, values in self.rows.items())


def read_list(path: Path) -> PaperTable:
    """A figure's list of runs; a row's ``printed`` is `UNKNOWN` where it does not say.

    Raises:
        PaperError: if the file is missing or does not follow the schema of tables.
    """
    content: Any = strict_yaml(path)
    rows = content.get("rows") if isinstance(content, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict):
            row.setdefault("printed", {})
    table = parse_table(content, path)
    keys = [column.key for column in table.columns]
    return replace(
        table,
        rows=tuple(
            replace(row, printed={key: row.printed.get(key, UNKNOWN) for key in keys})
            for row in table.rows
        ),
    )


def names() -> list[str]:
    """Every list as its figure is typed."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in ROOT.glob("*/*.yaml"))
