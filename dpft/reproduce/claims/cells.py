"""Comparisons of a table's cells: the printed ones, and ours at either scale."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
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
    in_range,
    in_words,
)
from dpft.reproduce.claims.schema import CellsCheck, Expected, FigureCheck, Pattern
from dpft.reproduce.figures import lists
from dpft.reproduce.papers import Column, PaperError, PaperTable, Row, load
from dpft.reproduce.papers.schema import Label, show_label
from dpft.reproduce.tables.cells import Cell, fill
from dpft.reproduce.tables.composition import Composer
from dpft.reproduce.tables.found import Index
from dpft.reproduce.tables.marks import NOT_THE_PAPERS
from dpft.reproduce.tables.plan import Plan, key_of, make_plan, words_at
from dpft.reproduce.tables.shown import shown_path
from dpft.reproduce.tables.verdicts import Verdict, at_least, tolerance

Group = tuple[Sequence[Row], Sequence[Row]]

# A record is of another run where one of these differs, which is known without composing it.
CHOICES = ("task", "adapt")
NUMBERS = ("optim.lr", "optim.batch_size", "optim.epochs", "task.limit_train", "task.limit_eval")


@dataclass
class Evidence:
    """Records and benchmarks, and the cells that the records fill; each read once.

    Attributes:
        index: the records.
        benches: the benchmarks.
        composer: within its ``with``.
    """

    index: Index
    benches: Sequence[BenchFile]
    composer: Composer
    _tables: dict[tuple[str, bool], PaperTable] = field(default_factory=dict)
    _cells: dict[tuple[int, str], tuple[Row, Mapping[str, Cell]]] = field(default_factory=dict)

    def table(self, name: str, *, figure: bool = False) -> PaperTable:
        """The table ``li2022/2``, or the list of runs of the figure of that name.

        Raises:
            ConfigError, PaperError: if there is none, or its file is malformed.
        """
        if (name, figure) not in self._tables:
            paper, _, number = name.partition("/")
            path = lists.ROOT / paper / f"{number}.yaml"
            self._tables[name, figure] = lists.read_list(path) if figure else load(paper, number)
        return self._tables[name, figure]

    def cell(self, table: PaperTable, row: Row, column: Column, scale: str) -> Cell:
        """A cell beside the records at a scale, which the table must have."""
        key = (id(row), scale)
        if key not in self._cells:
            filled = fill(self._plan(replace(table, rows=(row,)), scale), self.index)
            cells = zip(filled.columns, filled.rows[0].cells, strict=True)
            self._cells[key] = (row, {one.key: cell for one, cell in cells})
        return self._cells[key][1][column.key]

    def commands(self, table: PaperTable, scale: str) -> list[str]:
        """What trains those runs of a table that have no number at a scale."""
        runs = make_plan(table, self.composer, scale).runs
        lacking: dict[str, None] = {}
        for (i, j), run in runs.items():
            cell = self.cell(table, table.rows[i], _columns_at(table, scale)[j], scale)
            if cell.ours is None or (scale == "paper" and NOT_THE_PAPERS & {*cell.marks}):
                lacking[shlex.join(["dpft", "train", *run.overrides(0)])] = None
        return list(lacking)

    def _plan(self, table: PaperTable, scale: str) -> Plan:
        columns = _columns_at(table, scale)
        if any(self._may_be_recorded(table, column, scale) for column in columns):
            return make_plan(table, self.composer, scale)
        # None need be composed, which takes seconds for all tables.
        return Plan(table, scale, (0,), True, columns, table.rows, {}, (), ())

    def _may_be_recorded(self, table: PaperTable, column: Column, scale: str) -> bool:
        """Whether a record has the choices and numbers that the only row asks for."""
        (row,) = table.rows
        if row.run is None:
            return False
        words = words_at(table, column, row, scale)
        wanted = {key_of(word): word.partition("=")[2] for word in words}
        asked = [*map(wanted.get, CHOICES), *(_number(wanted.get(name)) for name in NUMBERS)]
        return any(
            all(x is None or x == y for x, y in zip(asked, one, strict=True))
            for one in self._recorded
        )

    @cached_property
    def _recorded(self) -> set[tuple[object, ...]]:
        records = (one.record for group in self.index.records.values() for one in group)
        return {
            (
                *(config[choice]["name"] for choice in CHOICES),
                *(config[group].get(name) for group, name in (x.split(".") for x in NUMBERS)),
            )
            for config in (record["config"] for record in records)
        }


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:  # an interpolation, which may come to any number
        return None


def compare_cells(check: CellsCheck, evidence: Evidence) -> tuple[list[Comparison], list[str]]:
    """Every comparison that the check asks for, and the commands that fill the missing cells.

    Raises:
        ConfigError, PaperError: if the check names a table, row or column that is not there, has a
            variant that does not compose, or compares nothing at all.
    """
    figure = isinstance(check, FigureCheck)
    table = evidence.table(check.table, figure=figure)
    columns = _columns(table, check.columns)
    if check.variants:
        _check_labels(table, (check.where,))
        table = _varied(table, check)
    _check_labels(table, (check.first, check.second, check.where, dict.fromkeys(check.free, ())))
    sides = [Side.PRINTED] if check.printed else []
    sides += [Side(one) for one in _scales(table) if one in check.scales] if check.ours else []
    compared: list[Comparison] = []
    for side in sides:
        scale = "laptop" if side is Side.LAPTOP else "paper"
        for first, second in _groups(check, _rows_at(table, scale)):
            for column in (one for one in _columns_at(table, scale) if one in columns):
                compared += _compare(check, table, column, (first, second), side, evidence)
    if not compared:
        raise PaperError(
            f"the check compares nothing in {table.name}; expected labels of rows that differ in "
            "nothing but what `first` and `second` say, or `free: [...]`"
        )
    lacking = {one.side for one in compared if one.outcome is Outcome.LACKING}
    if check.variants:
        return compared, [one for x in sides if x in lacking for one in evidence.commands(table, x)]
    commands = [
        shlex.join(["dpft", "figure" if figure else "table", check.table, *words, "--run"])
        for side, words in ((Side.LAPTOP, ["scale=laptop"]), (Side.PAPER, []))
        if side in lacking
    ]
    return compared, commands


def _varied(table: PaperTable, check: CellsCheck) -> PaperTable:
    """A row for each variant of each row in question; it prints no number."""
    rows = tuple(
        replace(
            row,
            labels={**row.labels, "variant": name},
            printed=dict.fromkeys(row.printed, math.nan),
            run=(*row.run, *words),
        )
        for row in _matching(table.rows, check.where)
        if row.run is not None
        for name, words in check.variants.items()
    )
    if not rows:
        raise PaperError(f"no row of {table.name} with {dict(check.where)} can be run")
    return replace(table, rows=rows, columns=_columns(table, check.columns))


def _compare(
    check: CellsCheck,
    table: PaperTable,
    column: Column,
    rows: Group,
    side: Side,
    evidence: Evidence,
) -> list[Comparison]:
    scale = "laptop" if side is Side.LAPTOP else "paper"
    # A printed dash asks for nothing.
    firsts, seconds = (
        [
            score
            for row in group
            if (score := _score(evidence.cell(table, row, column, scale), row, column, side))
        ]
        for group in rows
    )
    expected, scores = check.expected, [*firsts, *seconds]
    what = _what(check, column, *rows)
    of_text = expected.kind == "value"
    if not firsts or not (seconds or of_text):
        return []
    missing = [score for score in scores if score.value is None]
    if missing or (side is not Side.PRINTED and all(score.copied for score in scores)):
        why = "" if missing else "the paper took both numbers from elsewhere"
        why = next((score.why for score in missing if score.why), why)
        outcome = Outcome.CANNOT if why else Outcome.LACKING
        runs = tuple(run for score in scores for run in score.runs)
        return [Comparison(side, what, in_words(expected), outcome, why=why, runs=runs)]
    stand_ins = side is Side.PAPER and any(score.stands_in for score in scores)
    if stand_ins:
        # The paper's setting has no number. What the text states, and what the paper copied, is of
        # the paper's models; stand-ins are compared with each other alone.
        lacking = Comparison(side, what, in_words(expected), Outcome.LACKING)
        if of_text or any(score.copied for score in scores):
            return [lacking]
    if of_text:
        return [_against_text(what, expected, table, column, firsts[0], side)]
    sign = 1 if column.higher_is_better else -1
    one, two = (max(group, key=lambda s: sign * (s.value or 0.0)) for group in (firsts, seconds))
    if not stand_ins:
        return [contrast(what, expected, column, one, two, side)]
    one, two = (replace(score, spread=score.spread_of_ours) for score in (one, two))
    return [lacking, contrast(what, expected, column, one, two, Side.STAND_IN)]


def _score(cell: Cell, row: Row, column: Column, side: Side) -> Score | None:
    """The cell's number on a side; None for a printed dash."""
    if cell.printed is None:
        return None
    unknown = math.isnan(cell.printed)  # of a figure whose numbers did not come down to us
    if side is Side.PRINTED:
        return None if unknown else Score(row.name, cell.printed, cell.printed_spread)
    if cell.ours is not None:
        of_ours = None if cell.deviation is None else at_least(cell.deviation, cell.ours)
        return Score(
            row.name,
            cell.ours,
            # The printed deviation is of the paper's setting.
            spread=of_ours if unknown or side is Side.LAPTOP else cell.spread,
            spread_of_ours=of_ours,
            sampling=cell.sampling,
            runs=tuple(map(shown_path, cell.paths)),
            marks="".join(mark.letter for mark in cell.marks),
        )
    if cell.verdict is Verdict.COPIED and side is Side.PAPER:
        # Compared with what the paper itself took over.
        return Score(row.name, cell.printed, cell.printed_spread, copied=True)
    why = ""
    if cell.verdict is Verdict.COPIED:
        why = f"{row.name} is copied from {row.taken_from}, which no run at this scale compares to"
    if cell.verdict is Verdict.CANNOT_RUN:
        why = row.why or f"{column.label} is no score"
    return Score(row.name, None, why=why)


def _against_text(
    what: str, expected: Expected, table: PaperTable, column: Column, score: Score, side: Side
) -> Comparison:
    """A number against one that the text states; a printed one that differs may stand elsewhere."""
    assert score.value is not None
    assert expected.low is not None
    stated = expected.low
    # Text rounds more than tables do.
    allowed = 0.5 * 10.0 ** -len(f"{stated:g}".partition(".")[2])
    if side is not Side.PRINTED:
        allowed = max(
            tolerance(value, score.spread, column.decimals) for value in (score.value, stated)
        )
    outcome = in_range(score.value, score.value, (stated, stated), allowed)
    outcome = Outcome.HOLDS if outcome is Outcome.CLOSE else outcome
    text = score.text(column)
    if outcome is Outcome.FAILS and side is Side.PRINTED:
        printed = [(row.name, row.printed.get(column.key)) for row in table.rows]
        near = [name for name, x in printed if x is not None and abs(x - stated) <= allowed]
        text += f"; {stated:g} is printed of {'; '.join(near) or 'no row'}"
    return Comparison(
        side=side,
        what=what,
        expected=in_words(expected),
        outcome=outcome,
        text=text,
        numbers={"first": score.value, "told": stated, "margin": allowed},
        runs=score.runs,
        marks=score.marks,
    )


def _groups(check: CellsCheck, rows: Sequence[Row]) -> list[Group]:
    """Rows in question beside rows that they are compared with."""
    rows = _matching(rows, check.where)
    first = _matching(rows, check.first)
    if check.expected.kind == "value":
        return [([row], []) for row in first]
    loose = {*check.first, *check.second, *check.free}
    if check.expected.kind == "best":
        by_rest: dict[tuple[Label, ...], tuple[list[Row], list[Row]]] = {}
        for row in rows:
            rest = tuple(value for name, value in row.labels.items() if name not in loose)
            by_rest.setdefault(rest, ([], []))[row not in first].append(row)
        return [group for group in by_rest.values() if all(group)]
    return [
        ([one], [other])
        for one in first
        for other in _matching(rows, check.second)
        if one is not other
        and all(one.labels[name] == other.labels[name] for name in one.labels if name not in loose)
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


def _scales(table: PaperTable) -> tuple[str, ...]:
    return ("paper",) if table.laptop is None else ("paper", "laptop")


def _columns_at(table: PaperTable, scale: str) -> tuple[Column, ...]:
    return tuple(column for column in table.columns if scale == "paper" or column.at_laptop)


def _rows_at(table: PaperTable, scale: str) -> list[Row]:
    laptop = table.laptop if scale == "laptop" else None
    return [row for row in table.rows if laptop is None or not laptop.skips(row)]


def _matching(rows: Iterable[Row], pattern: Pattern) -> list[Row]:
    """The rows that have one of the pattern's values in each of its labels."""
    return [row for row in rows if all(row.labels[name] in pattern[name] for name in pattern)]


def _columns(table: PaperTable, keys: Sequence[str]) -> tuple[Column, ...]:
    """The columns with these keys; all, where none is named."""
    known = {column.key: column for column in table.columns}
    for key in keys:
        _check_known(table, "column", key, known)
    return tuple(known[key] for key in keys) if keys else table.columns


def _check_labels(table: PaperTable, patterns: Iterable[Pattern]) -> None:
    """Refuse a label or a value of one that no row has: it would silently compare nothing."""
    for name, values in (item for pattern in patterns for item in pattern.items()):
        _check_known(table, "label", name, table.label_names)
        for value in values:
            _check_known(table, name, value, [row.labels[name] for row in table.rows])


def _check_known(table: PaperTable, noun: str, got: Label, known: Iterable[Label]) -> None:
    if got not in known:
        names = list(dict.fromkeys(map(show_label, known)))
        raise PaperError(
            f"{table.name} has no {noun} {got!r}{suggestion(show_label(got), names)}; expected "
            f"{', '.join(names)}"
        )
