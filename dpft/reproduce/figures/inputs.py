"""What a figure is built from: scores of tables and lists, benchmarks, runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dpft.config.errors import ConfigError
from dpft.reproduce.bench.documents import BenchFile
from dpft.reproduce.figures.catalog import Figure
from dpft.reproduce.figures.content import FigurePoint, Origin
from dpft.reproduce.papers.schema import Column, Label, PaperTable, Row
from dpft.reproduce.tables.cells import Cell, Missing, fill, missing
from dpft.reproduce.tables.marks import Mark
from dpft.reproduce.tables.plan import PlannedRun, TablePlan, empty_plan, make_plan
from dpft.reproduce.tables.record_index import Index


@dataclass(frozen=True)
class ScorePair:
    """A printed number and ours, in their row and column; `run` is None where nothing is run."""

    row: Row
    column: Column
    cell: Cell
    run: PlannedRun | None

    def label(self, name: str) -> Label:
        """One of the row's labels; None where it has no such label."""
        return self.row.labels.get(name)

    @property
    def printed(self) -> float | None:
        """The printed number; None for a dash and for one that did not come down to us."""
        value = self.cell.printed
        return None if value is None or math.isnan(value) else value

    def value(self, origin: Origin) -> float | None:
        """The printed number or ours."""
        return self.printed if origin is Origin.PRINTED else self.cell.ours

    def point(self, x: float, origin: Origin, label: str = "") -> FigurePoint | None:
        """The printed number or ours at ``x``; None where there is none."""
        value = self.value(origin)
        if value is None:
            return None
        if origin is Origin.PRINTED:
            return FigurePoint(x, value, self.cell.printed_spread, label)
        # A number without a deviation is no news in a figure.
        marks = "".join(mark.letter for mark in self.cell.marks if mark is not Mark.NO_SPREAD)
        source = "; ".join(path.name for path in self.cell.paths)
        return FigurePoint(x, value, self.cell.deviation, label, marks, source)


@dataclass(frozen=True)
class Table:
    """A table's or list's rows and columns, with the records of their runs.

    Attributes:
        plan: the runs of a scale; None where the table does not have it.
        is_list: whether it is a figure's own list, whose choices no table explains.
    """

    printed: PaperTable
    plan: TablePlan | None
    index: Index
    is_list: bool = False

    @cached_property
    def scores(self) -> tuple[ScorePair, ...]:
        """Every printed cell, with ours and its run where the scale has them."""
        without_runs = empty_plan(self.printed, "paper")
        scores: dict[tuple[object, ...], ScorePair] = {}
        for plan in filter(None, (without_runs, self.plan)):
            for i, row in enumerate(fill(plan, self.index).rows):
                for j, (column, cell) in enumerate(zip(plan.columns, row.cells, strict=True)):
                    key = (*row.row.labels.values(), column.key)
                    scores[key] = ScorePair(row.row, column, cell, plan.runs.get((i, j)))
        return tuple(scores.values())


@dataclass(frozen=True)
class Inputs:
    """Everything one figure is built from.

    Attributes:
        scale: ``paper`` or ``laptop``.
        tables: in the order of the figure's.
        runs: run directories that the user named.
        progress: is called with how many of how many computations are done.
    """

    scale: str
    tables: tuple[Table, ...] = ()
    benches: Sequence[BenchFile] = ()
    runs: tuple[Path, ...] = ()
    progress: Callable[[int, int], None] = lambda done, total: None

    @property
    def scores(self) -> Iterator[ScorePair]:
        """Of all tables."""
        return (score for table in self.tables for score in table.scores)

    @property
    def missing(self) -> list[Missing]:
        """Runs that a table lacks, each once."""
        lacking: dict[tuple[str, int], Missing] = {}
        for table in self.tables:
            for one in missing(table.plan, table.index) if table.plan is not None else ():
                lacking.setdefault((one.planned.key, one.seed), one)
        return list(lacking.values())


def plan_tables(
    figure: Figure,
    scale: str,
    index: Index,
    seeds: Sequence[int] | None = None,
    extra: Sequence[str] = (),
) -> tuple[Table, ...]:
    """The figure's tables and lists, planned where they have this scale.

    Args:
        figure: whose.
        scale: ``paper`` or ``laptop``.
        index: the records.
        seeds: as of `make_plan`.
        extra: the user's overrides of every run.

    Raises:
        ConfigError: if none has this scale.
    """
    tables = []
    for selection in figure.tables:
        printed, plan = selection.load(), None
        if scale in printed.scales:
            plan = make_plan(printed, scale, seeds, extra)
        tables.append(Table(printed, plan, index, selection.is_list))
    if tables and not any(table.plan for table in tables):
        raise ConfigError(
            f"{figure.name} has no runs that fit a laptop; type dpft figure {figure.name} "
            "scale=paper"
        )
    return tuple(tables)
