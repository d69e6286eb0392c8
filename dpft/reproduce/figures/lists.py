"""Lists of runs for figures whose points no table prints.

A list has a table's form (`dpft.reproduce.papers`), so that planning, missing runs and matching of
records are those of tables; ``printed`` may be left out of a row.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpft.reproduce.papers import PaperTable
from dpft.reproduce.papers.reader import parse_table, strict_yaml

ROOT = Path(__file__).resolve().parent / "data"


def read_list(path: Path) -> PaperTable:
    """A figure's list of runs; what a row does not print is NaN, and still has a run.

    Raises:
        PaperError: if the file is missing or does not follow the schema of tables.
    """
    content: Any = strict_yaml(path)
    rows = content.get("rows") if isinstance(content, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict):
            row.setdefault("printed", {})
    table = parse_table(content, path)
    unknown = {column.key: math.nan for column in table.columns}
    rows = tuple(replace(row, printed=unknown | dict(row.printed)) for row in table.rows)
    return replace(table, rows=rows)


def load(name: str) -> PaperTable:
    """The list of the figure of that name, see `read_list`."""
    return read_list(ROOT / f"{name}.yaml")


def names() -> list[str]:
    """Every list as its figure is typed."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in ROOT.glob("*/*.yaml"))
