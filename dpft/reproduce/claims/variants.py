"""Runs that are in no table: a row's settings with other overrides, compared in pairs."""

from __future__ import annotations

import shlex
import statistics

from dpft.config.errors import ConfigError
from dpft.reproduce.claims.comparison import Comparison, Outcome, Side
from dpft.reproduce.claims.contrast import Score, contrast, in_words, not_the_papers
from dpft.reproduce.claims.evidence import Evidence, check_labels, columns_of, matching, scales_of
from dpft.reproduce.claims.schema import ClaimError, VariantsCheck
from dpft.reproduce.papers import Column, PaperTable, Row
from dpft.reproduce.tables.cells import chosen
from dpft.reproduce.tables.found import score
from dpft.reproduce.tables.marks import Mark, marks_of
from dpft.reproduce.tables.plan import Plan, PlannedRun, merged, planned, words_at
from dpft.reproduce.tables.shown import shown_path
from dpft.reproduce.tables.verdicts import at_least


def compare_variants(
    check: VariantsCheck, evidence: Evidence, where: str
) -> tuple[list[Comparison], list[str]]:
    """Every pair at every scale, and the commands of the missing runs.

    Args:
        check: from a file of claims.
        evidence: what is at hand.
        where: the claim, for messages.

    Raises:
        ClaimError: if the row or column is not there, or a run does not compose.
    """
    table = evidence.table(check.table, where)
    check_labels(table, (check.row,), where)
    rows = matching(table.rows, check.row)
    if len(rows) != 1 or rows[0].run is None:
        raise ClaimError(
            f"{where}: {len(rows)} rows of {table.name} have {dict(check.row)}; expected one, and "
            "one that can be run"
        )
    (column,) = columns_of(table, (check.column,), where)
    comparisons, commands = [], []
    for scale in (scale for scale in scales_of(table) if scale in check.scales):
        if scale == "laptop" and not column.at_laptop:
            continue
        runs = {
            name: _planned(table, column, rows[0], words, scale, evidence, where)
            for name, words in check.variants.items()
        }
        scores = {name: _score(run, column, scale, table, evidence) for name, run in runs.items()}
        side = Side(scale)
        for first, second in check.pairs:
            what = f"{column.label} ({rows[0].name}): {first} against {second}"
            pair = (scores[first], scores[second])
            stand_ins = scale == "paper" and any(not_the_papers(one.marks) for one in pair)
            without = any(one.value is None for one in pair)
            if without or stand_ins:
                expected = in_words(check.expected)
                comparisons.append(Comparison(side, what, expected, Outcome.LACKING))
            if without:
                continue
            named = ((first, pair[0]), (second, pair[1]))
            whose = Side.STAND_IN if stand_ins else side
            comparisons.append(contrast(what, check.expected, column, *named, whose))
        commands += [
            shlex.join(["dpft", "train", *run.overrides(0)])
            for name, run in runs.items()
            if scores[name].value is None
            or (scale == "paper" and not_the_papers(scores[name].marks))
        ]
    return comparisons, list(dict.fromkeys(commands))


def _planned(
    table: PaperTable,
    column: Column,
    row: Row,
    words: tuple[str, ...],
    scale: str,
    evidence: Evidence,
    where: str,
) -> PlannedRun:
    together = merged(words_at(table, column, row, scale), words)
    try:
        return planned(together, column.split, evidence.composer)
    except ConfigError as error:
        raise ClaimError(f"{where}, scale={scale}: {error}") from error


def _score(
    run: PlannedRun, column: Column, scale: str, table: PaperTable, evidence: Evidence
) -> Score:
    # Any seed counts: the plan says no more than that.
    plan = Plan(table, scale, (0,), True, (column,), (), {}, (), ())
    found = chosen(run, plan, evidence.index, column)
    scores = [score(one, column) for one in found.values()]
    values = [value for value in scores if value is not None]
    if not values:
        return Score(None)
    marks = marks_of(found.values(), run, column.split) | (
        {Mark.LAPTOP} if scale == "laptop" else set()
    )
    mean = statistics.fmean(values)
    return Score(
        mean,
        at_least(statistics.stdev(values), mean) if len(values) > 1 else None,
        runs=tuple(shown_path(one.path) for one in found.values()),
        marks="".join(mark.letter for mark in Mark if mark in marks),
    )
