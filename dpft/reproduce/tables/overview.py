"""Every table with its title, and how much of it has numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpft.reproduce.papers.schema import PaperTable
from dpft.reproduce.tables.cells import fill
from dpft.reproduce.tables.plan import SCALES, empty_plan, key_of, make_plan, words_at
from dpft.reproduce.tables.record_index import Index


@dataclass(frozen=True)
class TableEntry:
    """A table, and by scale how many cells have a number of how many that could."""

    table: PaperTable
    numbers: dict[str, tuple[int, int]]


def overview(tables: Sequence[PaperTable], index: Index) -> list[TableEntry]:
    """Count cells; a table none of whose tasks has a record is not composed."""
    entries = []
    for table in tables:
        scales = [scale for scale in SCALES if scale == "paper" or table.laptop is not None]
        counted = {scale: _numbers(table, scale, index) for scale in scales}
        entries.append(TableEntry(table, counted))
    return entries


def _numbers(table: PaperTable, scale: str, index: Index) -> tuple[int, int]:
    empty = empty_plan(table, scale)
    words = {
        word for _, _, row, column in empty.runnable for word in words_at(table, column, row, scale)
    }
    tasks = {word.partition("=")[2] for word in words if key_of(word) == "task"}
    plan = make_plan(table, scale) if tasks & index.tasks else empty
    return fill(plan, index).numbers
