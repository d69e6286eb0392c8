"""What a comparison of a printed number with ours says, defined in one place.

``matches``
    ``|ours - printed| <= 2 s + u/2``. ``s`` is the printed standard deviation, or a quarter of a
    printed 95% interval's width. Where the paper prints neither, ``2 s`` is that of ours over at
    least two seeds, but not less than 1% and not more than 5% of the printed number; 1% where ours
    is not known. ``u`` is the unit of the last printed digit.

    Ours does not count where one is printed, and is bounded where none is, because two or three
    seeds tell a deviation badly: one that collapsed would make anything match, and some that happen
    to agree would make nothing match. The mark "seeds far apart" says where ours is more than
    twice the printed deviation, or two of ours are more than those 5%.

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

import math
from enum import StrEnum
from typing import Self

RELATIVE = 0.01
CAP = 0.05


class CellVerdict(StrEnum):
    """See the module's text. Its sign tells it without colour; its meaning is for a legend."""

    sign: str
    meaning: str

    def __new__(cls, value: str, sign: str, meaning: str) -> Self:
        member = str.__new__(cls, value)
        member._value_, member.sign, member.meaning = value, sign, meaning
        return member

    MATCHES = "matches", "=", "within two standard deviations as printed, else of ours (1 to 5%)"
    ABOVE = "above", "↑", "ours is higher"
    BELOW = "below", "↓", "ours is lower"
    TREND = (
        *("trend", "~"),
        "ours is of another scale, model or data; compare it with its neighbours only",
    )
    NOT_RUN = "not run", "·", "not run yet"
    COPIED = "copied", "c", "the paper took the number from elsewhere; never run"
    CANNOT_RUN = "cannot run", "×", "dpft cannot run or measure it"
    NOT_PRINTED = "not printed", "-", "the paper prints no number"


def bounded(deviation: float, number: float) -> float:
    """What counts of a deviation over a few seeds of ours (``n - 1`` in the denominator).

    Twice the result is between `RELATIVE` and `CAP` of the number.
    """
    return min(max(2 * deviation, RELATIVE * abs(number)), CAP * abs(number)) / 2


def at_least(deviation: float, number: float) -> float:
    """What counts of a deviation of ours where our numbers are compared with each other.

    Twice the result is at least `RELATIVE` of the number. Not capped: seeds that lie far apart
    tell two numbers apart no better.
    """
    return max(deviation, RELATIVE * abs(number) / 2)


def share_error(share: float, records: int) -> float:
    """The standard error of a share that was counted over so many records.

    That of Agresti and Coull (1998), with two more hits and two more misses: a share of 0 or 1 is
    not exact either. The error of a difference of two shares of the same records is at most the
    root of the sum of their squares, where models err on other records, and less where they err on
    the same ones.
    """
    about = (share * records + 2) / (records + 4)
    return math.sqrt(about * (1 - about) / (records + 4))


def too_wide(deviation: float, printed: float, stated: float | None, decimals: int) -> bool:
    """Whether seeds of ours lie further apart than a mean of them can stand for.

    ``stated`` is the deviation that the paper prints, ``decimals`` its digits after the point.
    """
    if stated is None:
        return 2 * deviation > CAP * abs(printed)
    return deviation > 2 * stated + 0.5 * 10.0**-decimals


def tolerance(printed: float, spread: float | None, decimals: int) -> float:
    """How far ours may lie from ``printed`` and still match.

    ``spread`` is the standard deviation that counts, see `bounded` for one of ours.
    """
    allowed = RELATIVE * abs(printed) if spread is None else 2 * spread
    # Half a unit more: for that much the printed number may have been rounded.
    return float(allowed + 0.5 * 10.0**-decimals)


def compare(printed: float, ours: float, spread: float | None, decimals: int) -> CellVerdict:
    """The verdict on a number of the paper's own setting."""
    difference = ours - printed
    # Of two numbers at the edge, binary rounding must not decide.
    if abs(difference) <= tolerance(printed, spread, decimals) * (1 + 1e-9):
        return CellVerdict.MATCHES
    return CellVerdict.ABOVE if difference > 0 else CellVerdict.BELOW
