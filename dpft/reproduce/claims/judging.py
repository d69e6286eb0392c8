"""When a comparison counts, and what several of them say together: defined in one place.

**Margin.** Two scores differ only if they lie further apart than ``max(2 s, r) + u/2``, as in
`dpft.reproduce.tables.verdicts`: ``s`` is the larger standard deviation of the two (each number's
the printed one where there is one, else that of our seeds within bounds), ``r`` is 1% of the larger
number and counts only where no deviation is known, ``u`` is the unit of the last printed digit. For
ours at a laptop's scale a printed deviation says nothing, so only that of our seeds counts there:
in full, and as 0.5% where it is less, since two seeds that happen to agree are no measure. Two of
ours that are shares of the scored records, as accuracy is, differ by two standard errors of such a
share or not at all.

**Outcomes.** With ``d`` the amount by which the first number is better and ``m`` the margin:

============== ===================== ==================== =====================
expected       holds                 fails                too close to tell
============== ===================== ==================== =====================
above, best    ``d > m``             ``d < -m``           else
not_below      ``d >= -m``           ``d < -m``           never
on_par         ``|d| <= m``          ``|d| > m``          never
a range        inside                outside by ``> m``   outside by at most m
============== ===================== ==================== =====================

Where seeds of ours lie far apart (mark ``W``) or the scored records are few, so that their error is
the margin, a difference within it is too close to tell for ``not_below`` and ``on_par`` too: a wide
margin shows nothing to be as good.

A range that a paper states of its own printed numbers is arithmetic: there ``m`` is only what the
last digits may have been rounded by.

**Verdict.** Of a check's comparisons that came out: all hold, ``holds``; all fail, ``fails``; some
of each, ``mixed``; all too close, ``too close to tell``. The checks of a claim together are the
claim, so one of which more is too close to tell than holds leaves no more than ``holds in part`` of
what it and the others bear out, however many comparisons they have. Counts stand beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dpft.reproduce.claims.comparison import Comparison, Outcome
from dpft.reproduce.claims.schema import Expected
from dpft.reproduce.tables.verdicts import tolerance

# Of two numbers at the edge, binary rounding must not decide.
_EDGE = 1 + 1e-9


def margin(
    first: float, second: float, spread: float | None, decimals: int, *, arithmetic: bool = False
) -> float:
    """How far apart two scores must be to differ.

    Args:
        first: one score.
        second: the other.
        spread: the larger standard deviation of the two; None: none is known.
        decimals: printed digits after the point.
        arithmetic: whether nothing but the rounding of printed digits stands in the way.
    """
    if arithmetic:
        return float(10.0**-decimals)  # half a unit of each
    return max(tolerance(number, spread, decimals) for number in (first, second))


def ordered(kind: str, ahead: float, allowed: float) -> Outcome:
    """``above``, ``best``, ``not_below`` or ``on_par``.

    Args:
        kind: of `Expected`.
        ahead: by how much the first is better.
        allowed: the margin.
    """
    allowed *= _EDGE
    if kind == "on_par":
        return Outcome.HOLDS if abs(ahead) <= allowed else Outcome.FAILS
    if ahead < -allowed:
        return Outcome.FAILS
    if kind == "not_below" or ahead > allowed:
        return Outcome.HOLDS
    return Outcome.CLOSE


def in_range(value: float, expected: Expected, allowed: float) -> Outcome:
    """Whether a difference, ratio or value lies in the claim's range."""
    low = expected.low if expected.low is not None else float("-inf")
    high = expected.high if expected.high is not None else float("inf")
    if low <= value <= high:
        return Outcome.HOLDS
    allowed *= _EDGE
    return Outcome.CLOSE if low - allowed <= value <= high + allowed else Outcome.FAILS


def spread_in_range(low: float, high: float, expected: Expected) -> Outcome:
    """Whether a measured range lies inside the claim's, outside of it, or across its end."""
    least = expected.low if expected.low is not None else float("-inf")
    most = expected.high if expected.high is not None else float("inf")
    if least <= low and high <= most:
        return Outcome.HOLDS
    return Outcome.FAILS if high < least or low > most else Outcome.CLOSE


class Verdict(StrEnum):
    """Of a claim, on one side."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "fails"
    MIXED = "mixed"
    CLOSE = "too close to tell"
    NOT_YET = "not yet testable"
    CANNOT = "cannot be tested here"


@dataclass(frozen=True)
class Judgement:
    """A verdict with its counts.

    Attributes:
        verdict: see the module's text.
        holds: comparisons that bear the claim out.
        fails: those that contradict it.
        close: those too close to tell.
        lacking: those without numbers yet.
        cannot: those that no run here can give.
        ahead: of those with a better and a worse number, where the first is better, by any amount.
        behind: where it is worse.
    """

    verdict: Verdict
    holds: int
    fails: int
    close: int
    lacking: int
    cannot: int
    ahead: int
    behind: int

    @property
    def known(self) -> int:
        """Comparisons with numbers."""
        return self.holds + self.fails + self.close


def judge(checks: Iterable[Iterable[Comparison]]) -> Judgement:
    """What the checks of a claim say together.

    Args:
        checks: the comparisons of each.
    """
    parts = [list(comparisons) for comparisons in checks]
    listed = [one for part in parts for one in part]
    count = {outcome: sum(c.outcome is outcome for c in listed) for outcome in Outcome}
    verdict = _verdict(count)
    if verdict is Verdict.HOLDS and any(_mostly_close(part) for part in parts):
        verdict = Verdict.IN_PART
    return Judgement(
        verdict=verdict,
        holds=count[Outcome.HOLDS],
        fails=count[Outcome.FAILS],
        close=count[Outcome.CLOSE],
        lacking=count[Outcome.LACKING],
        cannot=count[Outcome.CANNOT],
        ahead=sum(c.ahead is True for c in listed if c.known),
        behind=sum(c.ahead is False for c in listed if c.known),
    )


def _verdict(count: Mapping[Outcome, int]) -> Verdict:
    if count[Outcome.HOLDS] and count[Outcome.FAILS]:
        return Verdict.MIXED
    if count[Outcome.HOLDS] or count[Outcome.FAILS]:
        return Verdict.HOLDS if count[Outcome.HOLDS] else Verdict.FAILS
    if count[Outcome.CLOSE]:
        return Verdict.CLOSE
    return Verdict.NOT_YET if count[Outcome.LACKING] else Verdict.CANNOT


def _mostly_close(part: Sequence[Comparison]) -> bool:
    """Whether more of a check is too close to tell than holds."""
    outcomes = [one.outcome for one in part]
    return outcomes.count(Outcome.CLOSE) > outcomes.count(Outcome.HOLDS)
