"""What a comparison of a printed number with ours says, defined in one place.

``matches``
    ``|ours - printed| <= max(2 s, r) + u/2``. ``s`` is the largest standard deviation that either
    side states: the printed one, a quarter of a printed 95% interval's width, or ours over at least
    two seeds. ``r`` is 1% of the printed number and counts only where neither side states any
    deviation. ``u`` is the unit of the last printed digit.

    The deviation is that of single runs, not the standard error of a mean: other code, libraries
    and hardware shift a mean by about as much as another seed does, and averaging over seeds does
    not take that away. One per cent is what deviations over seeds come to in tables that print
    them; a cell that rests on it has the mark "no deviation known".
``above``, ``below``
    Ours is outside that range. Whether that is better depends on the column.
``trend``
    There is a number, but not of the paper's setting: the laptop's scale, a part of the data, other
    data or another model. It may be compared with others of its kind, never with the paper's.
``not run``, ``copied``, ``cannot run``, ``not printed``
    No run has been recorded; the paper took the number from elsewhere; dpft cannot run or measure
    it; the paper prints a dash.
"""

from __future__ import annotations

from enum import StrEnum

RELATIVE = 0.01


class Verdict(StrEnum):
    """See the module's text."""

    MATCHES = "matches"
    ABOVE = "above"
    BELOW = "below"
    TREND = "trend"
    NOT_RUN = "not run"
    COPIED = "copied"
    CANNOT_RUN = "cannot run"
    NOT_PRINTED = "not printed"


# Each verdict can be told without colour.
SIGNS = {
    Verdict.MATCHES: "=",
    Verdict.ABOVE: "↑",
    Verdict.BELOW: "↓",
    Verdict.TREND: "~",
    Verdict.NOT_RUN: "·",
    Verdict.COPIED: "c",
    Verdict.CANNOT_RUN: "×",
    Verdict.NOT_PRINTED: "-",
}

MEANINGS = {
    Verdict.MATCHES: "within two standard deviations (1% where none is known)",
    Verdict.ABOVE: "ours is higher",
    Verdict.BELOW: "ours is lower",
    Verdict.TREND: "ours is of another scale, model or data; compare it with its neighbours only",
    Verdict.NOT_RUN: "not run yet",
    Verdict.COPIED: "the paper took the number from elsewhere; never run",
    Verdict.CANNOT_RUN: "dpft cannot run or measure it",
    Verdict.NOT_PRINTED: "the paper prints no number",
}


def tolerance(printed: float, spread: float | None, decimals: int) -> float:
    """How far ours may lie from ``printed`` and still match.

    Args:
        printed: the paper's number.
        spread: the largest standard deviation that is known; None: none is.
        decimals: printed digits after the point.
    """
    allowed = RELATIVE * abs(printed) if spread is None else 2 * spread
    # Half a unit more: for that much the printed number may have been rounded.
    return float(allowed + 0.5 * 10.0**-decimals)


def compare(printed: float, ours: float, spread: float | None, decimals: int) -> Verdict:
    """The verdict on a number of the paper's own setting."""
    difference = ours - printed
    # Of two numbers at the edge, binary rounding must not decide.
    if abs(difference) <= tolerance(printed, spread, decimals) * (1 + 1e-9):
        return Verdict.MATCHES
    return Verdict.ABOVE if difference > 0 else Verdict.BELOW
