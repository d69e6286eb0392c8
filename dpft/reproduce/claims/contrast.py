"""Two numbers against each other, or one against the text: the words and the outcome."""

from __future__ import annotations

from dataclasses import dataclass

from dpft.reproduce.claims.comparison import Comparison, Outcome, Side
from dpft.reproduce.claims.judging import in_range, margin, ordered
from dpft.reproduce.claims.schema import Expected
from dpft.reproduce.papers import Column, PaperTable, Row
from dpft.reproduce.tables.marks import NOT_THE_PAPERS, Mark


@dataclass(frozen=True)
class Score:
    """A number that may be compared, or why there is none.

    Attributes:
        value: None where there is none.
        spread: its standard deviation over seeds, where one is known.
        outcome: of a comparison without it.
        why: it cannot be had.
        runs: behind it.
        marks: letters.
        copied: whether the paper took it from elsewhere.
        sampling: the standard error that the number of scored records leaves to it, of shares.
    """

    value: float | None
    spread: float | None = None
    outcome: Outcome = Outcome.LACKING
    why: str = ""
    runs: tuple[str, ...] = ()
    marks: str = ""
    copied: bool = False
    sampling: float = 0.0


def not_the_papers(marks: str) -> bool:
    """Whether letters say that a number is not of the paper's own setting."""
    return any(mark.letter in marks for mark in NOT_THE_PAPERS)


def contrast(
    what: str,
    expected: Expected,
    column: Column,
    first: tuple[Row | str, Score],
    second: tuple[Row | str, Score],
    side: Side,
) -> Comparison:
    """Two numbers against each other.

    Args:
        what: what is compared.
        expected: of the first to the second.
        column: says which is better, and how many digits are shown.
        first: a row or a name, and its number.
        second: the same.
        side: whose numbers they are.
    """
    a, b = first[1], second[1]
    assert a.value is not None
    assert b.value is not None
    ahead = (a.value - b.value) * (1 if column.higher_is_better else -1)
    spreads = [spread for spread in (a.spread, b.spread) if spread is not None]
    ranged = expected.kind in ("apart", "ratio")
    usual = margin(
        a.value,
        b.value,
        max(spreads, default=None),
        column.decimals,
        arithmetic=ranged and side is Side.PRINTED,
    )
    allowed = max(usual, 2 * a.sampling, 2 * b.sampling)
    marks = "".join(sorted(set(a.marks + b.marks)))
    shown = f"{ahead:+.{column.decimals}f}"
    if expected.kind == "ratio":
        ratio = a.value / b.value if b.value else float("inf")
        outcome = in_range(ratio, expected, allowed / abs(b.value) if b.value else 0.0)
        shown = f"ratio {ratio:.3f}"
    elif ranged:
        outcome = in_range(ahead, expected, allowed)
    else:
        outcome = ordered(expected.kind, ahead, allowed)
        wide = allowed > usual or Mark.WIDE.letter in marks
        if outcome is Outcome.HOLDS and abs(ahead) <= allowed and wide:
            # Seeds far apart and few records make a wide margin, which shows nothing to be as good.
            outcome = Outcome.CLOSE
    named = [_number(score, column) for score in (a, b)]
    if expected.kind == "best":
        named = [f"{_number(score, column)} ({_name(place)})" for place, score in (first, second)]
    return Comparison(
        side=side,
        what=what,
        expected=in_words(expected, f"{allowed:.{column.decimals + 1}f}"),
        outcome=outcome,
        found=f"{named[0]} and {named[1]}: {shown}",
        numbers={"first": a.value, "second": b.value, "ahead": ahead, "margin": allowed},
        ahead=None if ahead == 0 or expected.kind == "ratio" else ahead > 0,
        runs=tuple(dict.fromkeys((*a.runs, *b.runs))),
        marks=marks,
    )


def against_text(
    what: str,
    expected: Expected,
    table: PaperTable,
    column: Column,
    one: tuple[Row, Score],
    side: Side,
) -> Comparison:
    """A number against one that the text states.

    Args:
        what: what is compared.
        expected: the text's number.
        table: where else that number may stand.
        column: of the table.
        one: the row and its number.
        side: whose it is.
    """
    score = one[1]
    assert score.value is not None
    assert expected.low is not None
    told = expected.low
    # Text rounds more than tables do.
    digits = len(f"{told:g}".partition(".")[2])
    allowed = 0.5 * 10.0**-digits if side is Side.PRINTED else 0.0
    if side is not Side.PRINTED:
        allowed = margin(score.value, told, score.spread, column.decimals)
    outcome = in_range(score.value, expected, allowed)
    outcome = Outcome.HOLDS if outcome is Outcome.CLOSE else outcome
    found = _number(score, column)
    if outcome is Outcome.FAILS and side is Side.PRINTED:
        near = [
            row.name
            for row in table.rows
            if (printed := row.printed.get(column.key)) is not None
            and abs(printed - told) <= allowed
        ]
        found += f"; {told:g} is printed of {'; '.join(near) or 'no row'}"
    return Comparison(
        side=side,
        what=what,
        expected=in_words(expected, f"{allowed:g}"),
        outcome=outcome,
        found=found,
        numbers={"first": score.value, "told": told, "margin": allowed},
        runs=score.runs,
        marks=score.marks,
    )


def in_words(expected: Expected, allowed: str = "the margin") -> str:
    """What is expected, for people."""
    low, high = expected.low, expected.high
    if expected.kind in ("above", "best"):
        return f"better by more than {allowed}"
    if expected.kind == "not_below":
        return f"not worse by more than {allowed}"
    if expected.kind == "on_par":
        return f"at most {allowed} apart"
    if expected.kind == "value":
        return f"{low:g}"
    kind = "better by" if expected.kind == "apart" else "a ratio of"
    if low is None or high is None:
        return f"{kind} at {f'most {high:g}' if low is None else f'least {low:g}'}"
    return f"{kind} {low:g} to {high:g}"


def _number(score: Score, column: Column) -> str:
    text = f"{score.value:.{column.decimals}f}"
    return f"{text} (copied)" if score.copied else text


def _name(place: Row | str) -> str:
    return place if isinstance(place, str) else place.name
