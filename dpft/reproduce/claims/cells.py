"""Comparisons of a table's cells: the printed ones, and ours at either scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from dpft.reproduce.claims.comparison import Comparison, Outcome, Side
from dpft.reproduce.claims.contrast import Score, against_text, contrast, in_words, not_the_papers
from dpft.reproduce.claims.evidence import Evidence, check_labels, columns_of, matching, scales_of
from dpft.reproduce.claims.schema import CellsCheck, ClaimError
from dpft.reproduce.papers import Column, PaperTable, Row
from dpft.reproduce.papers.schema import show_label
from dpft.reproduce.tables.cells import Cell, Filled
from dpft.reproduce.tables.shown import shown_path
from dpft.reproduce.tables.verdicts import Verdict, at_least

Cells = Mapping[tuple[int, str], Cell]


def compare_cells(check: CellsCheck, evidence: Evidence, where: str) -> list[Comparison]:
    """Every comparison that the check asks for, on each side that it names.

    Args:
        check: from a file of claims.
        evidence: what is at hand.
        where: the claim, for messages.

    Raises:
        ClaimError: if the check names a table, row or column that is not there, or compares
            nothing at all.
    """
    table = evidence.table(check.table, where, check.figure)
    check_labels(table, (check.first, check.second, check.where), where)
    check_labels(table, (dict.fromkeys(check.free, ()),), where)
    columns = columns_of(table, check.columns, where)
    sides = [Side.PRINTED] if check.printed else []
    sides += [Side(scale) for scale in scales_of(table)] if check.ours else []
    found = []
    for side in sides:
        filled = evidence.filled(table, "laptop" if side is Side.LAPTOP else "paper")
        cells = _by_place(filled)
        rows = [filled_row.row for filled_row in filled.rows]
        for first, second in _groups(check, rows):
            for column in (c for c in columns if c in filled.columns):
                found += _comparison(check, table, column, first, second, cells, side)
    if not found:
        raise ClaimError(
            f"{where}: the check compares nothing in {table.name}; expected labels of rows that "
            f"differ in nothing but what `first` and `second` say, or `free: [...]`"
        )
    return found


def _by_place(filled: Filled) -> Cells:
    return {(id(row.row), column.key): cell for row, column, cell in filled.cells}


def _groups(check: CellsCheck, rows: Sequence[Row]) -> list[tuple[list[Row], list[Row]]]:
    """Rows in question beside rows that they are compared with."""
    rows = matching(rows, check.where)
    first = matching(rows, check.first)
    kind = check.expected.kind
    if kind == "value":
        return [([row], []) for row in first]
    if kind == "best":
        loose = {*check.first, *check.free}
        by_rest: dict[tuple[object, ...], tuple[list[Row], list[Row]]] = {}
        for row in rows:
            rest = tuple(value for name, value in row.labels.items() if name not in loose)
            by_rest.setdefault(rest, ([], []))[row not in first].append(row)
        return [group for group in by_rest.values() if all(group)]
    loose = {*check.first, *check.second, *check.free}
    return [
        ([one], [other])
        for one in first
        for other in matching(rows, check.second)
        if one is not other
        and all(one.labels[name] == other.labels[name] for name in one.labels if name not in loose)
    ]


def _comparison(
    check: CellsCheck,
    table: PaperTable,
    column: Column,
    first: Sequence[Row],
    second: Sequence[Row],
    cells: Cells,
    side: Side,
) -> list[Comparison]:
    kind = check.expected.kind
    places = [(row, _score(row, column, cells, side)) for row in (*first, *second)]
    scores = [(row, score) for row, score in places if score is not None]
    if len(scores) < len(places) and kind != "best":
        return []  # a printed dash asks for nothing
    firsts = [(row, score) for row, score in scores if row in first]
    seconds = [(row, score) for row, score in scores if row not in first]
    if not firsts or not (seconds or kind == "value"):
        return []
    what = _what(column, first, second, check)
    missing = [score for _, score in scores if score.value is None]
    if missing or (side is not Side.PRINTED and all(score.copied for _, score in scores)):
        return [_without(what, check, scores, missing, side)]
    if side is Side.PAPER and any(not_the_papers(score.marks) for _, score in scores):
        return _with_stand_ins(what, check, column, firsts, seconds, cells)
    if kind == "value":
        return [against_text(what, check.expected, table, column, firsts[0], side)]
    one, two = _best(firsts, column), _best(seconds, column)
    return [contrast(what, check.expected, column, one, two, side)]


def _with_stand_ins(
    what: str,
    check: CellsCheck,
    column: Column,
    firsts: Sequence[tuple[Row, Score]],
    seconds: Sequence[tuple[Row, Score]],
    cells: Cells,
) -> list[Comparison]:
    """The paper's setting has no number; the stand-ins' are compared with each other alone."""
    lacking = Comparison(Side.PAPER, what, in_words(check.expected), Outcome.LACKING)
    copied = any(score.copied for _, score in (*firsts, *seconds))
    # What the text states, and what the paper copied, is of the paper's models.
    if check.expected.kind == "value" or copied:
        return [lacking]
    best = [_best(pairs, column)[0] for pairs in (firsts, seconds)]
    one, two = ((row, _score(row, column, cells, Side.STAND_IN) or Score(None)) for row in best)
    return [lacking, contrast(what, check.expected, column, one, two, Side.STAND_IN)]


def _without(
    what: str,
    check: CellsCheck,
    scores: Sequence[tuple[Row, Score]],
    missing: Sequence[Score],
    side: Side,
) -> Comparison:
    never = [score for score in missing if score.outcome is Outcome.CANNOT]
    why = never[0].why if never else ""
    if not missing:
        why = "the paper took both numbers from elsewhere"
    outcome = Outcome.CANNOT if why else Outcome.LACKING
    runs = tuple(run for _, score in scores for run in score.runs)
    return Comparison(side, what, in_words(check.expected), outcome, why=why, runs=runs)


def _score(row: Row, column: Column, cells: Cells, side: Side) -> Score | None:
    """The cell's number on a side; None for a printed dash."""
    cell = cells[id(row), column.key]
    if cell.printed is None:
        return None
    if side is Side.PRINTED:
        # A figure whose numbers did not come down to us has none.
        return None if math.isnan(cell.printed) else Score(cell.printed, cell.printed_spread)
    if cell.ours is not None:
        marks = "".join(mark.letter for mark in cell.marks)
        # The printed deviation is of the paper's setting.
        spread = cell.spread
        if side is not Side.PAPER:
            spread = None if cell.deviation is None else at_least(cell.deviation, cell.ours)
        return Score(
            cell.ours,
            spread,
            runs=tuple(map(shown_path, cell.paths)),
            marks=marks,
            sampling=cell.sampling,
        )
    if cell.verdict is Verdict.COPIED:
        if side is Side.PAPER:  # compared with what the paper itself took over
            return Score(cell.printed, cell.printed_spread, copied=True)
        why = f"{row.name} is copied from {row.taken_from}, which no run at this scale compares to"
        return Score(None, outcome=Outcome.CANNOT, why=why)
    if cell.verdict is Verdict.CANNOT_RUN:
        return Score(None, outcome=Outcome.CANNOT, why=row.why or f"{column.label} is no score")
    return Score(None)


def _best(scores: Iterable[tuple[Row, Score]], column: Column) -> tuple[Row, Score]:
    sign = 1 if column.higher_is_better else -1
    return max(scores, key=lambda pair: sign * (pair[1].value or 0.0))


def _what(column: Column, first: Sequence[Row], second: Sequence[Row], check: CellsCheck) -> str:
    if check.expected.kind == "value":
        return f"{column.label}: {first[0].name}"
    if check.expected.kind == "best":
        shared = _labels(first[0], [n for n in first[0].labels if n not in check.first])
        told = f" ({shared})" if shared else ""
        return f"{column.label}{told}: best of {len(first)} rows against best of {len(second)}"
    (one,), (other,) = first, second
    differing = [name for name in one.labels if one.labels[name] != other.labels[name]]
    shared = _labels(one, [name for name in one.labels if name not in differing])
    told = f" ({shared})" if shared else ""
    return f"{column.label}{told}: {_labels(one, differing)} against {_labels(other, differing)}"


def _labels(row: Row, names: Sequence[str]) -> str:
    return ", ".join(show_label(row.labels[name]) for name in names)
