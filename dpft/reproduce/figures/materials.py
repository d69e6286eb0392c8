"""What a builder is given: tables with what was found of their runs, and benchmarks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.reproduce.figures.content import Origin, Point, with_letters
from dpft.reproduce.figures.documents import Bench
from dpft.reproduce.papers.schema import Column, PaperTable
from dpft.reproduce.tables.cells import Cell, FilledRow, fill
from dpft.reproduce.tables.found import Index
from dpft.reproduce.tables.marks import Mark
from dpft.reproduce.tables.plan import Plan, PlannedRun

MEANINGS = {mark.letter: mark.meaning for mark in Mark}
# One of a number that has no deviation says nothing of a figure.
_NOT_SHOWN = (Mark.NO_SPREAD,)


@dataclass(frozen=True)
class Part:
    """A table's or list's rows and columns, and what was found of their runs.

    Attributes:
        table: what is printed.
        plan: the runs of a scale; None where the table does not have it.
        index: the records.
        own: whether it is a figure's own list, whose choices no table tells.
    """

    table: PaperTable
    plan: Plan | None
    index: Index
    own: bool = False

    @property
    def spots(self) -> Iterator[Spot]:
        """Every printed cell, with ours and its run where the scale has them."""
        found: dict[tuple[object, ...], Spot] = {}
        for plan in (_printed_only(self.table), self.plan):
            if plan is None:
                continue
            for i, row in enumerate(fill(plan, self.index).rows):
                for j, column in enumerate(plan.columns):
                    key = (*row.row.labels.values(), column.key)
                    found[key] = Spot(row, column, row.cells[j], plan.runs.get((i, j)))
        yield from found.values()


def _printed_only(table: PaperTable) -> Plan:
    return Plan(table, "paper", (0,), True, table.columns, table.rows, {}, (), ())


@dataclass(frozen=True)
class Spot:
    """A cell, its place and its run; `run` is None where nothing is run for it."""

    row: FilledRow
    column: Column
    cell: Cell
    run: PlannedRun | None

    def label(self, name: str) -> Any:
        """One of the row's labels."""
        return self.row.row.labels.get(name)

    @property
    def printed(self) -> float | None:
        """The printed number; None for a dash and for one that did not come down to us."""
        value = self.cell.printed
        return None if value is None or math.isnan(value) else value

    @property
    def letters(self) -> str:
        """Of the marks on our number."""
        return "".join(mark.letter for mark in self.cell.marks if mark not in _NOT_SHOWN)

    def point(self, x: float, origin: Origin) -> Point | None:
        """The printed number or ours at ``x``; None where there is none."""
        if origin is Origin.PRINTED:
            if self.printed is None:
                return None
            return Point(x, self.printed, self.cell.printed_spread)
        if self.cell.ours is None:
            return None
        source = "; ".join(path.name for path in self.cell.paths)
        return Point(x, self.cell.ours, self.cell.deviation, "", self.letters, source)


@dataclass(frozen=True)
class Materials:
    """Everything at hand for one figure.

    Attributes:
        scale: ``paper`` or ``laptop``.
        parts: in the order of the registry's.
        benches: what ``dpft bench`` has written.
        runs: run directories that were named by ``--runs`` themselves.
        tell: how far a computation is: done, of how many.
    """

    scale: str
    parts: tuple[Part, ...] = ()
    benches: tuple[Bench, ...] = ()
    runs: tuple[Path, ...] = ()
    tell: Callable[[int, int], None] = lambda done, total: None

    def caption(self, lines: Sequence[str], letters: str = "") -> tuple[str, ...]:
        """``lines``, what the parts must be read with, and what the letters mean."""
        told = list(lines)
        for part in self.parts:
            if part.own:
                told += [f"{part.table.source}: {choice}" for choice in part.table.choices]
            laptop = part.table.laptop
            if self.scale == "laptop" and laptop is not None:
                told.append(f"LAPTOP SCALE ({part.table.source}): {laptop.says}")
        return with_letters(list(dict.fromkeys(told)), letters, MEANINGS)
