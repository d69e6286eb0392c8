"""A table with its runs: cells, printed epsilons, and the runs that are missing."""

import itertools
import math
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.flags import TRAINED_BASE, Flag, has
from dpft.config.published import is_other_size, is_part
from dpft.config.schema import Audit, build, parse
from dpft.reproduce.papers import Column, PaperTable, Row
from dpft.reproduce.tables import verdicts
from dpft.reproduce.tables.planned import PlannedRun, TablePlan, words_at
from dpft.reproduce.tables.record_index import Answers, Index, IndexedRun
from dpft.reproduce.tables.verdicts import NOT_THE_PAPERS, CellVerdict, Mark

WITHIN = 0.03
_GENERATED = (Flag.SAMPLE_DATA, Flag.SYNTHETIC_DATA)
_PART_OR_OTHER = (Flag.LIMITED_TRAIN, Flag.LIMITED_EVAL, Flag.OTHER_FILES, Flag.LOSSY_COPIES)
_STAND_INS = (Flag.BUNDLED_MODEL, Flag.STAND_IN_MODEL, Flag.QUANTISED_WEIGHTS, *TRAINED_BASE)
NAMES = {"rdp": "eps RDP", "gdp_clt": "eps GDP-CLT", "prv": "eps PRV"}


@dataclass(frozen=True)
class Cell:
    """A printed number and ours, the mean over seeds, with its ``deviation`` (``n - 1``) over them.

    ``printed`` is None for a dash, NaN where a figure's number is unknown. ``sampling`` is the
    standard error that the number of scored records leaves to ours, which no seed lessens.
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

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(one.path for one in self.runs)

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or self.printed is None else self.ours - self.printed

    @property
    def spread(self) -> float | None:
        """The deviation behind the verdict: the printed one, else ours within bounds."""
        if self.printed_spread is not None or self.deviation is None or self.printed is None:
            return self.printed_spread
        return verdicts.bounded(self.deviation, self.printed)

    @property
    def printed_spread(self) -> float | None:
        """The printed deviation; of an interval of 95% a quarter of its width."""
        if self.std is not None:
            return self.std
        return None if self.ci95 is None else (self.ci95[1] - self.ci95[0]) / 4


@dataclass(frozen=True)
class EpsilonCell:
    """A printed epsilon and ours by the same accountant (PRV: its estimate), or ``why`` none.

    ``columns`` are labels of the columns whose runs it is of; none: of all of the row.
    """

    accountant: str
    columns: tuple[str, ...]
    printed: float
    ours: float | None
    why: str | None = None

    @property
    def difference(self) -> float | None:
        return None if self.ours is None else self.ours - self.printed

    @property
    def within(self) -> bool:
        """Return whether it is reproduced, to `WITHIN`."""
        return self.difference is not None and abs(self.difference) <= WITHIN + 1e-9


@dataclass(frozen=True)
class FilledRow:
    """A row: ``cells`` by column, and the epsilons that the paper prints for it."""

    row: Row
    cells: tuple[Cell, ...]
    epsilons: tuple[EpsilonCell, ...] = ()


@dataclass(frozen=True)
class Filled:
    """A planned table with its cells, and faults of records."""

    plan: TablePlan
    rows: tuple[FilledRow, ...]
    remarks: tuple[str, ...]

    @property
    def cells(self) -> list[Cell]:
        return [cell for row in self.rows for cell in row.cells]

    @property
    def numbers(self) -> tuple[int, int]:
        """Return how many cells have a number of ours, and how many a run could give one."""
        possible = sum(1 for _ in self.plan.runnable)
        return sum(cell.ours is not None for cell in self.cells), possible


def fill(
    plan: TablePlan, index: Index, epsilons: Sequence[tuple[EpsilonCell, ...]] | None = None
) -> Filled:
    """Put what was recorded into the plan's cells, and next to each row its printed epsilons."""
    rows = []
    for i, row in enumerate(plan.rows):
        cells = tuple(cell_of(plan, i, j, index) for j in range(len(plan.columns)))
        rows.append(FilledRow(row, cells, epsilons[i] if epsilons else ()))
    # Finished runs that lack a column's metric: training them again would not help.
    remarks = dict.fromkeys(index.damaged)
    for (_, j), planned in plan.runs.items():
        column = plan.columns[j]
        for found in index.of(planned.key):
            if found.has_scores(column.split) and found.score(column) is None:
                what = f"{found.path} has no {' or '.join(column.metrics)} of {column.split}"
                remarks[f"{what}; type dpft score {found.path}"] = None
    return Filled(plan, tuple(rows), tuple(remarks))


def chosen(
    planned: PlannedRun, plan: TablePlan, index: Index, column: Column
) -> dict[int, IndexedRun]:
    """Return one record for each seed that has the column's score.

    Of several one of the paper's data and the scale's model, then the one of exactly these
    settings, then the first by path: never by its score.
    """
    by_seed: dict[int, list[IndexedRun]] = {}
    for found in index.of(planned.key):
        wanted = plan.any_seed or found.seed in plan.seeds
        if wanted and found.score(column) is not None:
            by_seed.setdefault(found.seed, []).append(found)
    # A stand-in that this scale asks for is no reason to take another record.
    own = replace(planned, paper_model=planned.model_path)

    def rank(found: IndexedRun) -> tuple[bool, bool]:
        marked = bool(marks_of([found], own, column.split) & NOT_THE_PAPERS)
        return marked, found.config_hash != planned.config_hash(found.seed)

    groups = sorted(by_seed.items())
    return {s: group[0] if len(group) == 1 else min(group, key=rank) for s, group in groups}


def cell_of(plan: TablePlan, i: int, j: int, index: Index) -> Cell:
    """Return the cell of row ``i`` and column ``j`` of a plan, with what was recorded."""
    row, column = plan.rows[i], plan.columns[j]
    printed = row.printed.get(column.key)
    planned = plan.runs.get((i, j))
    records = [] if planned is None else [*chosen(planned, plan, index, column).values()]
    by_seed = {one.seed: value for one in records if (value := one.score(column)) is not None}
    values = list(by_seed.values())
    verdict = CellVerdict.NOT_RUN if column.metrics else CellVerdict.CANNOT_RUN
    if printed is None:
        verdict = CellVerdict.NOT_PRINTED
    elif row.run is None:
        verdict = CellVerdict.CANNOT_RUN if row.taken_from is None else CellVerdict.COPIED
    cell = Cell(
        printed=printed,
        std=row.std.get(column.key),
        ci95=row.ci95.get(column.key),
        ours=statistics.fmean(values) if values else None,
        deviation=statistics.stdev(values) if len(values) > 1 else None,
        found=len(values),
        wanted=len(plan.seeds) if planned is not None else 0,
        verdict=verdict,
        unexplained=row.unexplained.get(column.key),
        runs=tuple(records),
        sampling=max((one.sampling_error(column) for one in records), default=0.0),
        by_seed=by_seed,
        answers={one.seed: found for one in records if (found := one.answers(column))},
    )
    if planned is None or cell.ours is None or printed is None:
        return cell
    number = cell.ours if math.isnan(printed) else printed
    spread, digits = cell.printed_spread, column.decimals
    wide = cell.deviation is not None and verdicts.too_wide(cell.deviation, number, spread, digits)
    known = [x for one in records if (x := one.above_constant(column)) is not None]
    constant = bool(known) and statistics.fmean(known) <= 2 * cell.sampling
    marks = marks_of(records, planned, column.split)
    marks |= {Mark.LAPTOP} if plan.scale == "laptop" else set()
    marks |= {Mark.BASELINE} if row.taken_from is not None else set()
    marks |= {Mark.FEWER} if cell.found < cell.wanted else set()
    marks |= ({Mark.CONSTANT} if constant else set()) | ({Mark.WIDE} if wide else set())
    verdict = CellVerdict.TREND
    if not marks & {*NOT_THE_PAPERS, Mark.BASELINE}:
        verdict = verdicts.compare(printed, cell.ours, cell.spread, column.decimals)
        if cell.spread is None:
            marks.add(Mark.NO_SPREAD)
    return replace(cell, verdict=verdict, marks=tuple(mark for mark in Mark if mark in marks))


def marks_of(found: Iterable[IndexedRun], planned: PlannedRun, split: str) -> set[Mark]:
    """Return the marks of records of a planned run, by their flags, settings and counts."""
    marks = {Mark.OTHER} if planned.altered else set()
    for one in found:
        config, flags = one.record["config"], one.record.get("flags", [])
        task = config["task"]
        limited = task.get("limit_train") is not None or task.get("limit_eval") is not None
        count, size = one.record["dataset"]["counts"].get("train"), planned.train_size
        planted = build(Audit, config.get("audit", {}), "audit").planted
        other = count is not None and size is not None and is_other_size(count - planted, size)
        if limited or other or has(flags, *_PART_OR_OTHER) or is_part(one.record, split):
            marks.add(Mark.SUBSET)
        if has(flags, *_GENERATED) or task.get("source") == "sample":
            marks.add(Mark.GENERATED)
        base = one.record.get("model", {}).get("base_model") or config["model"]["path"]
        # A copy in a folder has the name of the model on the hub.
        is_papers = PurePosixPath(base).name == PurePosixPath(planned.paper_model).name
        if not is_papers or has(flags, *_STAND_INS):
            marks.add(Mark.MODEL)
        if "shuffled" in one.record["privacy"]["voided_by"]:
            marks.add(Mark.SHUFFLED)
    return marks


@dataclass(frozen=True)
class Missing:
    """A run that has no record with the scores that a cell needs."""

    planned: PlannedRun
    seed: int

    @property
    def line(self) -> str:
        """The words after ``dpft train``, and in a list of ``dpft sweep``."""
        return shlex.join(self.planned.overrides(self.seed))


def missing(plan: TablePlan, index: Index) -> list[Missing]:
    """Return the runs that a table lacks, each with each seed once, in the order of the rows.

    A finished run that lacks a metric is not named: to train it again would not help.
    """
    # By words: a run may be planned twice, with and without the mark of an override.
    lacking: dict[tuple[tuple[str, ...], int], PlannedRun] = {}
    for (_, j), planned in plan.runs.items():
        column = plan.columns[j]
        have = set(chosen(planned, plan, index, column))
        have |= {f.seed for f in index.of(planned.key) if f.has_scores(column.split)}
        if not plan.any_seed:
            have &= set(plan.seeds)
        still = [seed for seed in plan.seeds if seed not in have]
        for seed in still[: max(0, len(plan.seeds) - len(have))]:
            lacking.setdefault((planned.words, seed), planned)
    order = list(dict.fromkeys(run.words for run in plan.runs.values()))
    runs = [Missing(planned, seed) for (_, seed), planned in lacking.items()]
    return sorted(runs, key=lambda one: (order.index(one.planned.words), one.seed))


def epsilons(table: PaperTable, rows: Sequence[Row]) -> list[tuple[EpsilonCell, ...]]:
    """Return the printed epsilons of each row, next to those that our accountants compute.

    They follow from the paper's settings and the published number of records, without a run.
    """
    computed: dict[Any, dict[str, Any]] = {}

    def ours(words: Sequence[str]) -> dict[str, Any]:
        """Return the epsilons of a run by accountant; each mechanism is computed once."""
        from dpft.training.mechanisms import make_mechanism, published_size

        run = parse(compose(words))
        size, optim = published_size(run), run.optim
        length = (optim.epochs, optim.steps, optim.batch_size, optim.sampling_rate, optim.rate_like)
        key = (size, run.privacy, length)
        if key not in computed:
            computed[key] = make_mechanism(run, size).epsilons()
        return computed[key]

    found = []
    for row in rows:
        cells: dict[tuple[str, float, float | None, str | None], list[str]] = {}
        columns = [c for c in table.columns if c.metrics and row.printed.get(c.key) is not None]
        for (accountant, by_column), column in itertools.product(row.epsilons.items(), columns):
            printed = by_column.get(column.key, by_column.get(None))
            if printed is None:
                continue
            value, why = None, None
            try:
                value = ours(words_at(table, column, row, "paper"))[accountant]
            except ConfigError as error:
                why = str(error)
            if isinstance(value, dict):
                value = value["estimate"]
            cells.setdefault((accountant, printed, value, why), []).append(column.label)
        found.append(
            tuple(
                EpsilonCell(name, () if len(of) == len(columns) else tuple(of), printed, value, why)
                for (name, printed, value, why), of in cells.items()
            )
        )
    return found


def shown_path(path: Path) -> str:
    """Return a run directory without the folders of this machine."""
    if not path.is_absolute():
        return path.as_posix()
    if path.is_relative_to(Path.cwd()):
        return path.relative_to(Path.cwd()).as_posix()
    return "/".join(path.parts[-2:])
