"""The verdict on a printed number and ours, the deviations that count, and the marks of cells.

Ours ``matches`` if ``|ours - printed| <= 2 s + u/2``. ``s`` is the printed standard deviation, or a
quarter of a printed 95% interval's width. Where the paper prints neither, ``2 s`` is that of ours
over at least two seeds, but not less than 1% and not more than 5% of the printed number; 1% where
ours is not known. ``u`` is the unit of the last printed digit.

Two or three seeds estimate a deviation badly, so that ours is bounded: a collapsed seed would make
anything match, and seeds that happen to agree nothing. It is that of single runs, no standard error
of a mean: other code, libraries and hardware shift a mean by about as much as another seed does.
One per cent is about the deviation in tables that print it.
"""

import math
from enum import Enum, StrEnum
from typing import Self

RELATIVE = 0.01
CAP = 0.05


class CellVerdict(StrEnum):
    """A verdict with the sign that shows it without colour, and its meaning for a legend."""

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
        "trend",
        "~",
        "ours is of another scale, model or data; compare it with its neighbours only",
    )
    NOT_RUN = "not run", "·", "not run yet"
    COPIED = "copied", "c", "the paper took the number from elsewhere; never run"
    CANNOT_RUN = "cannot run", "×", "dpft cannot run or measure it"
    NOT_PRINTED = "not printed", "-", "the paper prints no number"


class Mark(Enum):
    """A letter for the cell, and its meaning in the legend."""

    def __init__(self, letter: str, meaning: str) -> None:
        self.letter = letter
        self.meaning = meaning

    LAPTOP = ("L", "laptop scale: not the paper's setting")
    SUBSET = ("S", "trained or scored on a part of the data, or on other data")
    GENERATED = ("G", "generated or synthetic data")
    MODEL = ("M", "another model stands in for the paper's")
    BASELINE = ("B", "the printed number is from another paper; ours has this table's settings")
    OTHER = ("O", "overrides in addition to the table's change its setting")
    SHUFFLED = ("H", "shuffled batches; epsilon computed for Poisson sampling")
    FEWER = ("F", "fewer seeds than asked for")
    NO_SPREAD = ("D", "no deviation known, on either side: judged by 1%")
    CONSTANT = ("C", "within two errors of one constant answer: nothing was learned")
    WIDE = ("W", "seeds far apart: ours deviates more than twice the printed, or 5%")


# A number with one of these is not of the paper's own setting.
NOT_THE_PAPERS = frozenset({Mark.LAPTOP, Mark.SUBSET, Mark.GENERATED, Mark.MODEL, Mark.OTHER})


def bounded(deviation: float, number: float) -> float:
    """Return what counts of our deviation: half of `RELATIVE` to `CAP` of the number."""
    return min(max(2 * deviation, RELATIVE * abs(number)), CAP * abs(number)) / 2


def share_error(share: float, records: int) -> float:
    """Return the standard error of a counted share by Agresti and Coull (1998): 0 is not exact."""
    about = (share * records + 2) / (records + 4)
    return math.sqrt(about * (1 - about) / (records + 4))


def too_wide(deviation: float, printed: float, stated: float | None, decimals: int) -> bool:
    """Return whether our seeds are too far apart for a mean; ``stated`` is as printed."""
    if stated is None:
        return 2 * deviation > CAP * abs(printed)
    return deviation > 2 * stated + 0.5 * 10.0**-decimals


def compare(printed: float, ours: float, spread: float | None, decimals: int) -> CellVerdict:
    """Return the verdict on a number of the paper's own setting, by the deviation that counts."""
    difference = ours - printed
    allowed = RELATIVE * abs(printed) if spread is None else 2 * spread
    # Half a unit more: for that much the printed number may have been rounded. Of two numbers at
    # the edge, binary rounding must not decide.
    if abs(difference) <= (allowed + 0.5 * 10.0**-decimals) * (1 + 1e-9):
        return CellVerdict.MATCHES
    return CellVerdict.ABOVE if difference > 0 else CellVerdict.BELOW
