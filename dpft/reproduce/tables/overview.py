"""Every table with its title, and how much of it has numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpft.reproduce.papers.schema import PaperTable
from dpft.reproduce.tables.cells import fill
from dpft.reproduce.tables.composition import Composer
from dpft.reproduce.tables.found import Index
from dpft.reproduce.tables.plan import SCALES, key_of, make_plan, words_at


@dataclass(frozen=True)
class Entry:
    """A table, and by scale how many cells have a number of how many that could."""

    table: PaperTable
    numbers: dict[str, tuple[int, int]]


def overview(tables: Sequence[PaperTable], index: Index, composer: Composer) -> list[Entry]:
    """Count cells; a table none of whose tasks has a record is not composed."""
    entries = []
    for table in tables:
        scales = [scale for scale in SCALES if scale == "paper" or table.laptop is not None]
        counted = {scale: _numbers(table, scale, index, composer) for scale in scales}
        entries.append(Entry(table, counted))
    return entries


def _numbers(table: PaperTable, scale: str, index: Index, composer: Composer) -> tuple[int, int]:
    words: set[str] = set()
    cells = 0
    laptop = table.laptop if scale == "laptop" else None
    for row in table.rows:
        if row.run is None or (laptop is not None and laptop.skips(row)):
            continue
        for column in table.columns:
            left_out = laptop is not None and not column.at_laptop
            if column.metrics and row.printed.get(column.key) is not None and not left_out:
                cells += 1
                words.update(words_at(table, column, row, scale))
    tasks = {word.partition("=")[2] for word in words if key_of(word) == "task"}
    if not tasks & index.tasks:
        return 0, cells
    return fill(make_plan(table, composer, scale), index).numbers
