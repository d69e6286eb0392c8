"""A table beside its runs, as one structure that every output is rendered from."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpft.reproduce.papers.schema import Column, PaperTable, Row
from dpft.reproduce.tables.agreement import Agreement, agreement
from dpft.reproduce.tables.epsilons import EpsilonCell
from dpft.reproduce.tables.marks import NOT_THE_PAPERS, Mark, marks_of
from dpft.reproduce.tables.matching import scored_with
from dpft.reproduce.tables.plan import PlannedRun, TablePlan
from dpft.reproduce.tables.record_index import Answers, Index, IndexedRun
from dpft.reproduce.tables.verdicts import CellVerdict, bounded, compare, too_wide
from dpft.runs.lineage import begun_with, names_apart


@dataclass(frozen=True)
class Cell:
    """A printed number and ours.

    Attributes:
        printed: None for a dash.
        std: the printed standard deviation.
        ci95: the printed interval.
        unexplained: printed behind a plus-minus sign that the paper does not explain.
        ours: mean over seeds.
        deviation: of ours over seeds, ``n - 1`` in the denominator; None for fewer than two.
        found: seeds with a number.
        wanted: seeds asked for.
        verdict: see `dpft.reproduce.tables.verdicts`.
        marks: in the order of `Mark`.
        runs: what ours is of, by seed.
        sampling: the standard error that the number of scored records leaves to ours, which more
            seeds on them do not lessen: see `sampling_error`.
        by_seed: numbers of ours, of which ``ours`` is the mean.
        answers: by seed, which records were answered rightly; of accuracies whose record says so.
        begun: names and digests of the weights that they began with, see `begun_with`.
    """

    printed: float | None
    std: float | None
    ci95: tuple[float, float] | None
    ours: float | None
    deviation: float | None
    found: int
    wanted: int
    verdict: CellVerdict
    unexplained: float | None = None
    marks: tuple[Mark, ...] = ()
    runs: tuple[IndexedRun, ...] = ()
    sampling: float = 0.0
    by_seed: Mapping[int, float] = field(default_factory=dict)
    answers: Mapping[int, Answers] = field(default_factory=dict)
    begun: frozenset[tuple[str, str]] = frozenset()

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the runs behind ours are."""
        return tuple(one.path for one in self.runs)

    @property
    def difference(self) -> float | None:
        """Ours less printed."""
        if self.ours is None or self.printed is None:
            return None
        return self.ours - self.printed

    @property
    def spread(self) -> float | None:
        """The standard deviation that the verdict rests on; None where neither side states one.

        The printed one, else ours within the bounds of `dpft.reproduce.tables.verdicts.bounded`.
        """
        if self.printed_spread is not None or self.deviation is None or self.printed is None:
            return self.printed_spread
        return bounded(self.deviation, self.printed)

    @property
    def printed_spread(self) -> float | None:
        """The printed deviation; of an interval of 95% a quarter of its width."""
        if self.std is not None:
            return self.std
        return None if self.ci95 is None else (self.ci95[1] - self.ci95[0]) / 4


@dataclass(frozen=True)
class FilledRow:
    """A row: ``cells`` by column, and the epsilons that the paper prints for it."""

    row: Row
    cells: tuple[Cell, ...]
    epsilons: tuple[EpsilonCell, ...] = ()


@dataclass(frozen=True)
class Filled:
    """A table with all that is known of it.

    Attributes:
        plan: the printed table at a scale.
        rows: of this scale, with cells by column.
        agreement: of rows' order, for each column that allows it.
        remarks: what is wrong with records.
        unlike: cells whose seeds were not made or scored alike.
    """

    plan: TablePlan
    rows: tuple[FilledRow, ...]
    agreement: tuple[Agreement, ...]
    remarks: tuple[str, ...]
    unlike: tuple[str, ...]

    @property
    def table(self) -> PaperTable:
        """The printed one."""
        return self.plan.table

    @property
    def scale(self) -> str:
        """``paper`` or ``laptop``."""
        return self.plan.scale

    @property
    def columns(self) -> tuple[Column, ...]:
        """Of this scale."""
        return self.plan.columns

    @property
    def cells(self) -> list[Cell]:
        """All, row by row."""
        return [cell for row in self.rows for cell in row.cells]

    @property
    def numbers(self) -> tuple[int, int]:
        """Cells that have a number of ours, and cells that a run could give one."""
        possible = sum(1 for _ in self.plan.runnable)
        return sum(cell.ours is not None for cell in self.cells), possible


def fill(
    plan: TablePlan, index: Index, epsilons: Sequence[tuple[EpsilonCell, ...]] | None = None
) -> Filled:
    """Put what was recorded into the plan's cells, and beside each row its printed epsilons."""
    records = {
        (i, j): list(chosen(planned, plan, index, plan.columns[j]).values())
        for (i, j), planned in plan.runs.items()
    }
    rows = []
    for i, row in enumerate(plan.rows):
        cells = tuple(_cell(plan, i, j, records.get((i, j), ())) for j in range(len(plan.columns)))
        rows.append(FilledRow(row, cells, () if epsilons is None else epsilons[i]))
    compared = [
        agreement(column, [(r.row.name, r.cells[j]) for r in rows])
        for j, column in enumerate(plan.columns)
    ]
    unlike = (_unlike(plan.rows[i], plan.columns[j], found) for (i, j), found in records.items())
    return Filled(
        plan=plan,
        rows=tuple(rows),
        agreement=tuple(a for a in compared if a is not None),
        remarks=(*index.damaged, *_without_metric(plan, index)),
        unlike=tuple(dict.fromkeys(filter(None, unlike))),
    )


def chosen(
    planned: PlannedRun, plan: TablePlan, index: Index, column: Column
) -> dict[int, IndexedRun]:
    """One record for each seed that has the column's score.

    Of several one of the paper's own data and the scale's own model, then the one of exactly these
    settings, then the first by path: never by its score.
    """
    by_seed: dict[int, list[IndexedRun]] = {}
    for found in index.of(planned.key):
        if found.score(column) is None or not _same_weights(found, planned, column):
            continue
        if plan.any_seed or found.seed in plan.seeds:
            by_seed.setdefault(found.seed, []).append(found)

    # A stand-in that this scale asks for is no reason to take another record.
    own = replace(planned, paper_model=planned.model_path)

    def rank(found: IndexedRun) -> tuple[bool, bool]:
        marked = bool(marks_of([found], own, column.split) & NOT_THE_PAPERS)
        return marked, found.config_hash != planned.config_hash(found.seed)

    return {seed: min(by_seed[seed], key=rank) for seed in sorted(by_seed)}


def _same_weights(found: IndexedRun, planned: PlannedRun, column: Column) -> bool:
    """Whether a metric that a model computes is computed by the one that is asked for."""
    task = found.record["config"]["task"]
    return all(
        scored_with(name, task) == scored_with(name, planned.run.task) for name in column.metrics
    )


def _cell(plan: TablePlan, i: int, j: int, records: Sequence[IndexedRun]) -> Cell:
    row, column = plan.rows[i], plan.columns[j]
    printed = row.printed.get(column.key)
    planned = plan.runs.get((i, j))
    by_seed = {one.seed: value for one in records if (value := one.score(column)) is not None}
    values = list(by_seed.values())
    cell = Cell(
        printed=printed,
        std=row.std.get(column.key),
        ci95=row.ci95.get(column.key),
        ours=statistics.fmean(values) if values else None,
        deviation=statistics.stdev(values) if len(values) > 1 else None,
        found=len(values),
        wanted=len(plan.seeds) if planned is not None else 0,
        verdict=_without_run(row, column),
        unexplained=row.unexplained.get(column.key),
        runs=tuple(records),
        sampling=max((one.sampling_error(column) for one in records), default=0.0),
        by_seed=by_seed,
        answers={one.seed: found for one in records if (found := one.answers(column))},
        begun=_begun(records),
    )
    if planned is None or cell.ours is None or printed is None:
        return cell
    marks = marks_of(records, planned, column.split)
    if plan.scale == "laptop":
        marks.add(Mark.LAPTOP)
    if row.taken_from is not None:
        marks.add(Mark.BASELINE)
    if cell.found < cell.wanted:
        marks.add(Mark.FEWER)
    if all(one.is_constant(column) for one in records):
        marks.add(Mark.CONSTANT)
    # Of some figures no number came down to us.
    number = cell.ours if math.isnan(printed) else printed
    if cell.deviation is not None and too_wide(
        cell.deviation, number, cell.printed_spread, column.decimals
    ):
        marks.add(Mark.WIDE)
    verdict = CellVerdict.TREND
    if not marks & {*NOT_THE_PAPERS, Mark.BASELINE}:
        verdict = compare(printed, cell.ours, cell.spread, column.decimals)
        if cell.spread is None:
            marks.add(Mark.NO_SPREAD)
    return replace(cell, verdict=verdict, marks=tuple(mark for mark in Mark if mark in marks))


def _begun(records: Iterable[IndexedRun]) -> frozenset[tuple[str, str]]:
    return frozenset[tuple[str, str]]().union(*(begun_with(one.record) for one in records))


def _without_run(row: Row, column: Column) -> CellVerdict:
    if row.printed.get(column.key) is None:
        return CellVerdict.NOT_PRINTED
    if row.run is None:
        return CellVerdict.CANNOT_RUN if row.taken_from is None else CellVerdict.COPIED
    return CellVerdict.NOT_RUN if column.metrics else CellVerdict.CANNOT_RUN


def _unlike(row: Row, column: Column, found: Sequence[IndexedRun]) -> str:
    """In what a cell's seeds were not made or scored alike: their mean is of different things."""
    records = [one.record for one in found]
    values = {
        # Fingerprints are made with a key of each run's own: no two are alike.
        "data": {_data(one) for one in records},
        "signature of scores": {one["scores"][column.split]["signature"] for one in records},
        "commit": {one["dpft"]["commit"] for one in records},
    }
    apart = [name for name, different in values.items() if len(different) > 1]
    apart += [f"weights of {name}" for name in names_apart(_begun(found))]
    return f"{row.name}: seeds of {column.split} differ in {', '.join(apart)}" if apart else ""


def _data(record: Mapping[str, Any]) -> tuple[object, ...]:
    dataset = record["dataset"]
    return dataset.get("source"), *sorted(dataset.get("counts", {}).items())


def _without_metric(plan: TablePlan, index: Index) -> list[str]:
    """Finished runs that lack a column's metric: training them again would not help."""
    remarks: dict[str, None] = {}
    for (_, j), planned in plan.runs.items():
        column = plan.columns[j]
        for found in index.of(planned.key):
            if found.has_scores(column.split) and found.score(column) is None:
                remarks[
                    f"{found.path} has no {' or '.join(column.metrics)} of {column.split}; "
                    f"type dpft score {found.path}"
                ] = None
    return list(remarks)
