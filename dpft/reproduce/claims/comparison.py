"""One comparison: two numbers, what the claim makes of them, and whether it is borne out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Side(StrEnum):
    """Whose numbers are compared."""

    PRINTED = "printed"  # the paper's own
    PAPER = "paper"  # ours, at the paper's setting
    STAND_IN = "stand-in"  # ours, at the paper's scale, but not of its model, data or settings
    LAPTOP = "laptop"  # ours, at a laptop's
    COMPUTED = "computed"
    MEASURED = "measured"


class Outcome(StrEnum):
    """Of a single comparison."""

    HOLDS = "holds"
    FAILS = "fails"
    CLOSE = "too close to tell"
    LACKING = "no number yet"
    CANNOT = "cannot be tested here"


DECIDED = (Outcome.HOLDS, Outcome.FAILS)


@dataclass(frozen=True)
class Comparison:
    """Two numbers side by side.

    Attributes:
        side: whose they are.
        what: what is compared.
        expected: of the claim, in words, with the margin.
        outcome: whether it is so.
        found: the numbers in words; empty where there are none.
        numbers: the numbers, by name.
        ahead: whether the first number is the better one, however little; None: there is no better.
        why: it cannot be tested here.
        where: what the numbers are of: model, shape and machine of a measurement.
        brief: the same in two words.
        runs: run directories or files behind them.
        marks: letters of `dpft.reproduce.tables.marks`, of either number.
    """

    side: Side
    what: str
    expected: str
    outcome: Outcome
    found: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    ahead: bool | None = None
    why: str = ""
    where: str = ""
    brief: str = ""
    runs: tuple[str, ...] = ()
    marks: str = ""

    @property
    def known(self) -> bool:
        """Whether there are numbers."""
        return self.outcome in (*DECIDED, Outcome.CLOSE)
