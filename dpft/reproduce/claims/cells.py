"""Comparisons of a table's cells: the printed ones, and ours at either scale."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dpft.config.errors import suggestion
from dpft.reproduce.bench.documents import BenchFile
from dpft.reproduce.claims.comparison import (
    Comparison,
    Outcome,
    Score,
    Side,
    contrast,
    in_words,
    margin,
    ordered,
)
from dpft.reproduce.claims.schema import CellsCheck, FigureCheck
from dpft.reproduce.figures import lists
from dpft.reproduce.papers import Column, PaperError, PaperTable, Row, load
from dpft.reproduce.papers.schema import Label, Pattern, show_label
from dpft.reproduce.tables.cells import Cell, fill
from dpft.reproduce.tables.marks import NOT_THE_PAPERS
from dpft.reproduce.tables.plan import TablePlan, key_of, make_plan, words_at
from dpft.reproduce.tables.record_index import Index
from dpft.reproduce.tables.text_table import shown_path
from dpft.reproduce.tables.verdicts import CellVerdict, at_least

Group = tuple[Sequence[Row], Sequence[Row]]

# One seed leaves the margin to decide; a laptop has time for three.
LAPTOP_SEEDS = (0, 1, 2)
_SEEDS = f"--seeds {','.join(map(str, LAPTOP_SEEDS))}"
# A record is of another run where one of these differs, which is known without composing it.
CHOICES = ("task", "adapt")
NUMBERS = ("optim.lr", "optim.batch_size", "optim.epochs", "task.limit_train", "task.limit_eval")


@dataclass
class Evidence:
    """Records and benchmarks, and the cells that the records fill; each read once.

    Attributes:
        index: the records.
        benches: the benchmarks.
    """

    index: Index
    benches: Sequence[BenchFile]
    _tables: dict[tuple[str, bool], PaperTable] = field(default_factory=dict)
    _cells: dict[tuple[int, str, str], tuple[Row, Cell]] = field(default_factory=dict)

    def table(self, name: str, *, figure: bool = False) -> PaperTable:
        """The table ``li2022/2``, or the list of runs of the figure of that name.

        Raises:
            ConfigError, PaperError: if there is none, or its file is malformed.
        """
        if (name, figure) not in self._tables:
            paper, _, number = name.partition("/")
            self._tables[name, figure] = lists.load(name) if figure else load(paper, number)
        return self._tables[name, figure]

    def cell(self, table: PaperTable, row: Row, column: Column, scale: str) -> Cell:
        """A cell beside the records at a scale, which the table must have."""
        key = (id(row), column.key, scale)
        if key not in self._cells:
            plan = TablePlan(table, scale, (0,), True, (column,), (row,), {}, (), ())
            if self._may_be_recorded(table, row, column, scale):
                alone = replace(table, rows=(row,), columns=(column,))
                plan = make_plan(alone, scale)
            self._cells[key] = row, fill(plan, self.index).rows[0].cells[0]
        return self._cells[key][1]

    def commands(self, table: PaperTable, scale: str) -> list[str]:
        """What trains those runs of a table that have no number at a scale."""
        plan = make_plan(table, scale)
        lacking: dict[str, None] = {}
        for (i, j), run in plan.runs.items():
            cell = self.cell(table, plan.rows[i], plan.columns[j], scale)
            if cell.ours is None or (scale == "paper" and NOT_THE_PAPERS & {*cell.marks}):
                for seed in LAPTOP_SEEDS if scale == "laptop" else (0,):
                    lacking[shlex.join(["dpft", "train", *run.overrides(seed)])] = None
        return list(lacking)

    def _may_be_recorded(self, table: PaperTable, row: Row, column: Column, scale: str) -> bool:
        """Whether a record has what the cell's run chooses; composing every run takes seconds."""
        if row.run is None:
            return False
        words = words_at(table, column, row, scale)
        wanted = {key_of(word): word.partition("=")[2] for word in words}
        asked: set[tuple[str, object]] = {(key, wanted[key]) for key in CHOICES if key in wanted}
        for key in NUMBERS:
            with contextlib.suppress(KeyError, ValueError):  # not asked for, or an interpolation
                asked.add((key, float(wanted[key])))
        return any(asked <= one for one in self._recorded)

    @cached_property
    def _recorded(self) -> set[frozenset[tuple[str, object]]]:
        records = (one.record for group in self.index.records.values() for one in group)
        paths = [(key, *key.split(".")) for key in NUMBERS]
        paths += [(key, key, "name") for key in CHOICES]
        return {
            frozenset((key, record["config"][group].get(name)) for key, group, name in paths)
            for record in records
        }


def compare_cells(check: CellsCheck, evidence: Evidence) -> tuple[list[Comparison], list[str]]:
    """Every comparison that the check asks for, and the commands that fill the missing cells.

    Raises:
        ConfigError, PaperError: if the check names a table, row or column that is not there, has a
            variant that does not compose, or compares nothing at all.
    """
    figure = isinstance(check, FigureCheck)
    table = evidence.table(check.table, figure=figure)
    for key in check.columns:
        _check_known(table, "column", key, [column.key for column in table.columns])
    if check.columns:
        columns = tuple(column for column in table.columns if column.key in check.columns)
        table = replace(table, columns=columns)
    if check.variants:
        _check_labels(table, check.where)
        table = _varied(table, check)
    for pattern in (check.first, check.second, check.where, dict.fromkeys(check.free, ())):
        _check_labels(table, pattern)
    sides = [Side.PRINTED] if check.printed else []
    sides += [Side(one) for one in table.scales if one in check.scales] if check.ours else []
    compared: list[Comparison] = []
    for side in sides:
        part = table.at(side.scale)
        for group in _groups(check, [row for row in part.rows if row.matches(check.where)]):
            for column in part.columns:
                compared += _compare(check, table, group, column, side, evidence)
    if not compared:
        raise PaperError(
            f"the check compares nothing in {table.name}; expected labels of rows that differ in "
            "nothing but what `first` and `second` say, or `free: [...]`"
        )
    lacking = {one.side for one in compared if one.outcome is Outcome.LACKING}
    if check.variants:
        return compared, [one for x in sides if x in lacking for one in evidence.commands(table, x)]
    typed = shlex.join(["dpft", "figure" if figure else "table", check.table])
    commands = [f"{typed} scale=laptop {_SEEDS} --run"] if Side.LAPTOP in lacking else []
    return compared, commands + ([f"{typed} --run"] if Side.PAPER in lacking else [])


def _varied(table: PaperTable, check: CellsCheck) -> PaperTable:
    """A row for each variant of each row in question; it prints no number."""
    rows = tuple(
        replace(
            row,
            labels={**row.labels, "variant": name},
            printed=dict.fromkeys(row.printed, math.nan),
            run=(*row.run, *words),
        )
        for row in table.rows
        if row.run is not None and row.matches(check.where)
        for name, words in check.variants.items()
    )
    if not rows:
        raise PaperError(f"no row of {table.name} with {dict(check.where)} can be run")
    return replace(table, rows=rows)


def _compare(
    check: CellsCheck,
    table: PaperTable,
    group: Group,
    column: Column,
    side: Side,
    evidence: Evidence,
) -> list[Comparison]:
    expected = check.expected
    blank = Comparison(side, _what(check, column, *group), in_words(expected), Outcome.LACKING)
    cells = [
        [(row, evidence.cell(table, row, column, side.scale)) for row in rows] for rows in group
    ]
    firsts, seconds = _scores(cells, column, side)
    stated = expected.low if expected.kind == "value" else None
    if not firsts or not (seconds or stated is not None):
        return []
    scores = [*firsts, *seconds]
    missing = [score for score in scores if score.value is None]
    if missing or (side is not Side.PRINTED and all(score.copied for score in scores)):
        why = "" if missing else "the paper took both numbers from elsewhere"
        why = next((score.why for score in missing if score.why), why)
        runs = tuple(run for score in scores for run in score.runs)
        outcome = Outcome.CANNOT if why else Outcome.LACKING
        return [replace(blank, outcome=outcome, why=why, runs=runs)]
    compared = []
    if side is Side.PAPER and any(score.stands_in for score in scores):
        # The paper's setting has no number. What the text states, and what the paper copied, is of
        # the paper's models; stand-ins are compared with each other alone.
        compared = [blank]
        if stated is not None or any(score.copied for score in scores):
            return compared
        blank = replace(blank, side=Side.STAND_IN)
        firsts, seconds = _scores(cells, column, blank.side)
    if stated is not None:
        return [_against_text(blank, stated, table, column, firsts[0])]
    sign = 1 if column.higher_is_better else -1
    one, two = (_best(part, sign) for part in (firsts, seconds))
    return [*compared, contrast(blank, expected, column, one, two)]


def _best(scores: Sequence[Score], sign: int) -> Score:
    """The best of several; at each seed the number of that which the other seeds say is best.

    Chosen by the seeds that it is then compared with, the best of many would be ahead by chance.
    """
    best = max(scores, key=lambda one: sign * (one.value or 0.0))
    seeds = set.intersection(*({*one.by_seed} for one in scores))
    if len(scores) == 1:
        return best
    if len(seeds) < 2:  # no other seeds to choose by: a margin decides, and no interval
        return replace(best, by_seed={seed: best.by_seed[seed] for seed in seeds})

    def by_others(seed: int) -> Score:
        return max(scores, key=lambda one: sign * sum(one.by_seed[s] for s in seeds - {seed}))

    chosen = {seed: by_others(seed) for seed in sorted(seeds)}
    names = dict.fromkeys(one.name for one in chosen.values())
    return replace(
        best,
        name=" or ".join(names) + ", by the other seeds",
        by_seed={seed: one.by_seed[seed] for seed, one in chosen.items()},
        answers={s: one.answers[s] for s, one in chosen.items() if s in one.answers},
        begun=best.begun.union(*(one.begun for one in chosen.values())),
        runs=tuple(dict.fromkeys((*best.runs, *(run for x in chosen.values() for run in x.runs)))),
    )


def _scores(
    cells: Iterable[Iterable[tuple[Row, Cell]]], column: Column, side: Side
) -> list[list[Score]]:
    """Of the first rows and of the second; a printed dash asks for nothing."""
    scores = [[_score(row, column, cell, side) for row, cell in part] for part in cells]
    return [[score for score in part if score is not None] for part in scores]


def _score(row: Row, column: Column, cell: Cell, side: Side) -> Score | None:
    """The cell's number on a side; None for a printed dash."""
    if cell.printed is None:
        return None
    unknown = math.isnan(cell.printed)  # of a figure whose numbers did not come down to us
    if side is Side.PRINTED:
        return None if unknown else Score(row.name, cell.printed, cell.printed_spread)
    if cell.ours is not None:
        # The printed deviation is of the paper's setting.
        spread = cell.spread
        if unknown or side is not Side.PAPER:
            spread = None if cell.deviation is None else at_least(cell.deviation, cell.ours)
        return Score(
            row.name,
            cell.ours,
            spread,
            sampling=cell.sampling,
            by_seed=cell.by_seed,
            answers=cell.answers,
            begun=cell.begun,
            runs=tuple(map(shown_path, cell.paths)),
            marks="".join(mark.letter for mark in cell.marks),
        )
    if cell.verdict is CellVerdict.COPIED and side is Side.PAPER:
        # Compared with what the paper itself took over.
        return Score(row.name, cell.printed, cell.printed_spread, copied=True)
    why = ""
    if cell.verdict is CellVerdict.COPIED:
        why = f"{row.name} is copied from {row.taken_from}, which no run at this scale compares to"
    if cell.verdict is CellVerdict.CANNOT_RUN:
        why = row.why or f"{column.label} is no score"
    return Score(row.name, None, why=why)


def _against_text(
    blank: Comparison, stated: float, table: PaperTable, column: Column, score: Score
) -> Comparison:
    """A number against one that the text states; a printed one that differs may stand elsewhere."""
    assert score.value is not None
    printed = blank.side is Side.PRINTED
    # Text rounds more than tables do.
    allowed = 0.5 * 10.0 ** -len(f"{stated:g}".partition(".")[2])
    if not printed:
        allowed = margin(column, score, Score("the text", stated))
    outcome = ordered("on_par", score.value - stated, allowed)
    text = score.text(column)
    if outcome is Outcome.FAILS and printed:
        numbers = [(row.name, row.printed.get(column.key)) for row in table.rows]
        near = [name for name, x in numbers if x is not None and abs(x - stated) <= allowed]
        text += f"; {stated:g} is printed of {'; '.join(near) or 'no row'}"
    return replace(
        blank,
        outcome=outcome,
        text=text,
        numbers={"first": score.value, "stated": stated, "margin": allowed},
        runs=score.runs,
        marks=score.marks,
    )


def _groups(check: CellsCheck, rows: Sequence[Row]) -> list[Group]:
    """Rows in question beside rows that they are compared with."""
    first = [row for row in rows if row.matches(check.first)]
    if check.expected.kind == "value":
        return [([row], []) for row in first]
    loose = {*check.first, *check.second, *check.free}

    def rest(row: Row) -> tuple[Label, ...]:
        return tuple(value for name, value in row.labels.items() if name not in loose)

    if check.expected.kind == "best":
        by_rest: dict[tuple[Label, ...], tuple[list[Row], list[Row]]] = {}
        for row in rows:
            by_rest.setdefault(rest(row), ([], []))[row not in first].append(row)
        return [group for group in by_rest.values() if all(group)]
    second = [row for row in rows if row.matches(check.second)]
    return [
        ([one], [other])
        for one in first
        for other in second
        if one is not other and rest(one) == rest(other)
    ]


def _what(check: CellsCheck, column: Column, first: Sequence[Row], second: Sequence[Row]) -> str:
    one, kind = first[0], check.expected.kind
    if kind == "value":
        return f"{column.label}: {one.name}"
    if kind == "best":
        differing = list(check.first)
        text = f"best of {len(first)} rows against best of {len(second)}"
    else:
        other = second[0]
        differing = [name for name in one.labels if one.labels[name] != other.labels[name]]
        text = " against ".join(
            ", ".join(show_label(row.labels[name]) for name in differing) for row in (one, other)
        )
    shared = [show_label(value) for name, value in one.labels.items() if name not in differing]
    of = f" ({', '.join(shared)})" if shared else ""
    return f"{column.label}{of}: {text}"


def _check_labels(table: PaperTable, pattern: Pattern) -> None:
    """Refuse a label or a value of one that no row has: it would silently compare nothing."""
    for name, values in pattern.items():
        _check_known(table, "label", name, table.label_names)
        for value in values:
            _check_known(table, name, value, [row.labels[name] for row in table.rows])


def _check_known(table: PaperTable, noun: str, got: Label, known: Sequence[Label]) -> None:
    if got not in known:
        names = list(dict.fromkeys(map(show_label, known)))
        raise PaperError(
            f"{table.name} has no {noun} {got!r}{suggestion(show_label(got), names)}; expected "
            f"{', '.join(names)}"
        )
