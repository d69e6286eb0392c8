"""What the comparisons of a claim say together: defined in one place.

Of a check's comparisons that came out: all hold, ``holds``; all fail, ``fails``; some
of each, ``mixed``; all too close, ``too close to tell``. The checks of a claim together are the
claim, so one of which more is too close to tell than holds leaves no more than ``holds in part`` of
what it and the others bear out, however many comparisons they have. Where all numbers of runs have
intervals over seeds, a claim is ``confirmed here`` if every interval says so, and ``contradicted
here`` if none bears it out and in one of its checks as many fail as are not told apart: where
nothing differs, one interval in forty says "better" and one "worse" by chance. Else it ``holds in
part``, ``fails in part``, or is ``not told apart with n seeds``. Counts stand beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dpft.reproduce.claims.comparison import Comparison, Outcome


class Verdict(StrEnum):
    """Of a claim, on one side."""

    CONFIRMED = "confirmed here"
    CONTRADICTED = "contradicted here"
    NOT_APART = "not told apart"
    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "fails"
    FAILS_IN_PART = "fails in part"
    MIXED = "mixed"
    CLOSE = "too close to tell"
    NOT_YET = "not yet testable"
    CANNOT = "cannot be tested here"


@dataclass(frozen=True)
class Judgement:
    """A verdict with how many comparisons have each `Outcome`.

    In ``ahead`` of them the first number is the better one, by any amount, in ``behind`` the worse.
    Behind those decided by an interval are ``seeds`` at least; 0: none is.
    """

    verdict: Verdict
    holds: int
    fails: int
    close: int
    apart: int
    lacking: int
    cannot: int
    ahead: int
    behind: int
    seeds: int = 0

    @property
    def known(self) -> int:
        """Comparisons with numbers."""
        return self.holds + self.fails + self.close + self.apart


def judge(comparisons: Sequence[Comparison]) -> Judgement:
    """What the comparisons of a claim say together."""
    count = Counter(one.outcome for one in comparisons)
    holds, fails, close, apart, lacking, cannot = (count[outcome] for outcome in Outcome)
    by_check = Counter((one.check, one.outcome) for one in comparisons)
    open_ = {
        check: by_check[check, Outcome.CLOSE] + by_check[check, Outcome.NOT_APART]
        for check, _ in by_check
    }
    mostly_close = any(open_[check] > by_check[check, Outcome.HOLDS] for check in open_)
    # One check that fails is enough; one of its many intervals that does may be chance.
    contradicts = any(0 < by_check[check, Outcome.FAILS] >= open_[check] for check in open_)
    seeds = [one.paired.seeds for one in comparisons if one.paired is not None]
    by_seeds = bool(seeds) and not any(one.by_margin or one.idle for one in comparisons)
    if holds and fails:
        verdict = Verdict.MIXED
    elif holds and (mostly_close or (by_seeds and close + apart)):
        verdict = Verdict.IN_PART
    elif holds:
        verdict = Verdict.CONFIRMED if by_seeds else Verdict.HOLDS
    elif fails and by_seeds:
        verdict = Verdict.CONTRADICTED if contradicts else Verdict.FAILS_IN_PART
    elif fails:
        verdict = Verdict.FAILS
    elif close or apart:
        verdict = Verdict.NOT_APART if by_seeds else Verdict.CLOSE
    else:
        verdict = Verdict.NOT_YET if lacking else Verdict.CANNOT
    known = Counter(one.ahead for one in comparisons if one.known)
    return Judgement(
        *(verdict, holds, fails, close, apart, lacking, cannot),
        ahead=known[True],
        behind=known[False],
        seeds=min(seeds, default=0),
    )
