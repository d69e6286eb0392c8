"""Every figure of the three papers, as ``data/figures.yaml`` describes it, and its inputs.

A figure's list of runs, ``data/PAPER/NUMBER.yaml``, has a table's form (`dpft.reproduce.papers`),
so that planning, missing runs and matching of records are those of tables.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, model_validator

from dpft.config.errors import ConfigError, suggestion
from dpft.reproduce import papers
from dpft.reproduce.bench.documents import BenchFile
from dpft.reproduce.figures.content import Axis, FigurePoint, Look, Origin
from dpft.reproduce.papers import Column, PaperTable, Pattern, Row, strict_yaml
from dpft.reproduce.tables.cells import Cell, Missing, fill, missing
from dpft.reproduce.tables.planned import PlannedRun, TablePlan, empty_plan, make_plan
from dpft.reproduce.tables.record_index import Index
from dpft.reproduce.tables.verdicts import Mark

ROOT = Path(__file__).resolve().parent / "data"


def load_list(name: str) -> PaperTable:
    """Return the list of runs of the figure of that name."""
    return papers.read(ROOT / f"{name}.yaml", is_list=True)


class FigureKind(StrEnum):
    """The material of a figure; ``private`` is a run's noiseless files."""

    COMPUTED = "computed"
    RUNS = "runs"
    BENCH = "bench"
    PRIVATE = "private"
    NONE = "none"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PickedCells(_Strict):
    """Rows and columns (none: all) of a paper's table, or of a figure's list of runs.

    ``rows`` are labels, each with the values of which a row must have one.
    """

    name: str
    columns: tuple[str, ...] = ()
    rows: Pattern = {}
    is_list: bool = False

    def load(self) -> PaperTable:
        """Return the table with these rows and columns alone."""
        whole = load_list(self.name) if self.is_list else papers.load(*self.name.split("/", 1))
        rows = tuple(row for row in whole.rows if row.matches(self.rows))
        columns = tuple(c for c in whole.columns if not self.columns or c.key in self.columns)
        if not rows or not columns:
            raise ConfigError(f"{self.name} has nothing of {dict(self.rows)}, {self.columns}")
        return replace(whole, rows=rows, columns=columns)


class ScoreSeries(_Strict):
    """Scores of one column in one panel, see `dpft.reproduce.figures.measured`.

    Series of one ``panel`` share it, and the axes of its first series. Each text that ``label``,
    with labels of the row in braces, gives is a separate series; ``text`` is written next to
    each point. ``x`` is one of `scores.POSITIONS`, or a label of the row. Points are joined by
    ``x`` with ``sort``, otherwise in the order of the rows.
    """

    panel: str
    column: str
    label: str = "score"
    x: str
    x_axis: Axis
    y: str = "accuracy (%)"
    where: Pattern = {}
    look: Look = "line"
    text: str = ""
    sort: bool = True


class Figure(_Strict):
    """One figure, by ``build`` of `dpft.reproduce.figures.draw.BUILDERS`; without it see ``why``.

    ``all_series`` has what ``series`` have in common.
    """

    name: str
    title: str
    source: str
    kind: FigureKind
    build: str | None = None
    why: str = ""
    tables: tuple[PickedCells, ...] = ()
    series: tuple[ScoreSeries, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """The name of its files: ``li2022-6``."""
        return self.name.replace("/", "-")

    @property
    def private(self) -> bool:
        """Return whether it is made without noise from training records."""
        return self.kind is FigureKind.PRIVATE

    @model_validator(mode="before")
    @classmethod
    def _spread(cls, content: dict[str, Any]) -> dict[str, Any]:
        common = content.get("all_series", {})
        series = [common | one for one in content.get("series", ())]
        return {k: v for k, v in content.items() if k != "all_series"} | {"series": series}


@functools.cache
def figures(path: Path = ROOT / "figures.yaml") -> Mapping[str, Figure]:
    """Return every figure by name, in the papers' order."""
    named = {name: {"name": name, **one} for name, one in strict_yaml(path).items()}
    return TypeAdapter(dict[str, Figure]).validate_python(named)


def load(name: str) -> Figure:
    """Return the figure of a name."""
    known = figures()
    if name not in known:
        near = suggestion(name, known)
        raise ConfigError(f"there is no figure {name!r}{near}; type dpft figure for all of them")
    return known[name]


@dataclass(frozen=True)
class ScorePair:
    """A printed number and ours, in their row and column; `run` is None where nothing is run."""

    row: Row
    column: Column
    cell: Cell
    run: PlannedRun | None

    def value(self, origin: Origin) -> float | None:
        """Return the printed number or ours; None for a dash and for an unknown one."""
        value = self.cell.printed if origin is Origin.PRINTED else self.cell.ours
        return None if value is None or math.isnan(value) else value

    def point(self, x: float, origin: Origin, label: str = "") -> FigurePoint | None:
        """Return the printed number or ours at ``x``; None where there is none."""
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
    """Rows and columns with their recorded runs; without the scale ``plan`` is None."""

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
    """Everything one figure is built from; the user named ``runs``, as directories."""

    scale: str
    tables: tuple[Table, ...] = ()
    benches: Sequence[BenchFile] = ()
    runs: tuple[Path, ...] = ()

    @property
    def scores(self) -> Iterator[ScorePair]:
        return (score for table in self.tables for score in table.scores)

    @property
    def missing(self) -> list[Missing]:
        """The runs that a table lacks, each once."""
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
    """Return the figure's tables and lists, planned where they have this scale."""
    tables = []
    for picked in figure.tables:
        printed = picked.load()
        plan = make_plan(printed, scale, seeds, extra) if scale in printed.scales else None
        tables.append(Table(printed, plan, index, picked.is_list))
    return tuple(tables)
