"""What several comparisons say together."""

import pytest

from dpft.reproduce.claims.comparison import Comparison, Outcome, Side, in_range
from dpft.reproduce.claims.judgement import Verdict, judge
from dpft.reproduce.claims.report import counted

H, F, C, L, N = (
    Outcome.HOLDS,
    Outcome.FAILS,
    Outcome.CLOSE,
    Outcome.LACKING,
    Outcome.CANNOT,
)


def judged(*outcomes, ahead=None):
    return judged_by_checks(outcomes, ahead=ahead)


def judged_by_checks(*checks, ahead=None):
    return judge(
        [
            Comparison(Side.PAPER, "x", "y", one, ahead=ahead, check=number)
            for number, check in enumerate(checks)
            for one in check
        ]
    )


@pytest.mark.parametrize(
    ("outcomes", "verdict", "text"),
    [
        ((H, H), Verdict.HOLDS, "holds (2 of 2 hold)"),
        ((H, C), Verdict.HOLDS, "holds (1 of 2 hold, 1 too close)"),
        ((F, C), Verdict.FAILS, "fails (0 of 2 hold, 1 too close)"),
        ((H, F, F), Verdict.MIXED, "mixed (1 of 3 hold)"),
        ((C, C), Verdict.CLOSE, "too close to tell (0 of 2 hold)"),
        ((H, L), Verdict.HOLDS, "holds so far (1 of 1 hold; 1 without numbers)"),
        ((L, N), Verdict.NOT_YET, "not yet testable"),
        ((N,), Verdict.CANNOT, "cannot be tested here"),
        ((), Verdict.CANNOT, "cannot be tested here"),
    ],
)
def test_verdicts(outcomes, verdict, text):
    assert judged(*outcomes).verdict is verdict
    assert counted(judged(*outcomes)) == text


@pytest.mark.parametrize(
    ("checks", "text"),
    [
        (((H, H), (C,)), "holds in part (2 of 3 hold, 1 too close)"),
        (((H, C), (H,)), "holds (2 of 3 hold, 1 too close)"),
        (((H, C, C), (H, H)), "holds in part (3 of 5 hold, 2 too close)"),
        (((C, L), (H,)), "holds in part so far (1 of 2 hold, 1 too close; 1 without numbers)"),
        (((H,), (L,)), "holds so far (1 of 1 hold; 1 without numbers)"),
        (((H,), (N,)), "holds (1 of 1 hold)"),
        (((H, H), (F,)), "mixed (2 of 3 hold)"),
        (((F,), (C,)), "fails (0 of 2 hold, 1 too close)"),
        (((C,), (N,)), "too close to tell (0 of 1 hold)"),
    ],
)
def test_a_check_that_is_mostly_too_close_keeps_a_claim_from_holding(checks, text):
    assert counted(judged_by_checks(*checks)) == text


def test_directions_are_counted_whatever_the_margin():
    both = judged(C, F, L, ahead=False)
    assert (both.ahead, both.behind) == (0, 2)  # what has no numbers has no direction


def test_a_measured_range_across_the_end_is_too_close():
    at_most = (None, 1.1)
    assert in_range(0.9, 1.1, at_most) is H
    assert in_range(1.0, 1.2, at_most) is C
    assert in_range(1.11, 1.2, at_most) is F
