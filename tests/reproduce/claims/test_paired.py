"""Intervals over seeds against closed forms and SciPy's tests, and the verdicts that follow."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from dpft.config.errors import ConfigError
from dpft.reproduce.claims.cells import compare_cells
from dpft.reproduce.claims.comparison import Outcome, Side, Verdict, judge
from dpft.reproduce.claims.paired import detectable, half_width, paired
from dpft.reproduce.claims.report import counted
from dpft.reproduce.claims.schema import Expected
from tests.reproduce.claims.example import Evidence, check, row

HOLDS, FAILS, NOT_APART = Outcome.HOLDS, Outcome.FAILS, Outcome.NOT_APART
FULL, LORA = {"method": "full"}, {"method": "LoRA"}


def by_seed(*values, start=1):
    return dict(enumerate(values, start))


def test_two_seeds_by_the_closed_form():
    # Student's t with one degree of freedom is Cauchy's distribution: its quantile is a tangent.
    both = paired(by_seed(5.0, 7.0), by_seed(4.0, 3.0))
    assert (both.difference, both.seeds) == (2.5, 2)
    half = math.tan(math.pi * 0.475) * 1.5  # deviation 1.5 sqrt(2), over sqrt(2)
    assert (both.low, both.high) == pytest.approx((2.5 - half, 2.5 + half))


@pytest.mark.parametrize("seeds", [2, 3, 5, 12])
def test_the_interval_is_scipys(seeds):
    draw = np.random.default_rng(seeds)
    first, second = draw.normal(60, 2, seeds), draw.normal(58, 2, seeds)
    both = paired(by_seed(*first), by_seed(*second))
    result = stats.ttest_rel(first, second)
    assert (both.low, both.high) == pytest.approx(tuple(result.confidence_interval(0.95)))
    assert (both.low > 0 or both.high < 0) == (result.pvalue < 0.05)


@pytest.mark.parametrize("seeds", [2, 3, 4, 10])
def test_power_by_integration(seeds):
    critical, shift = stats.t.ppf(0.975, seeds - 1), detectable(2.0, seeds) * math.sqrt(seeds) / 2

    def shown(deviation):  # of the estimate, in units of the true one
        density = stats.chi.pdf(deviation * math.sqrt(seeds - 1), seeds - 1)
        return math.sqrt(seeds - 1) * density * stats.norm.sf(critical * deviation - shift)

    assert integrate.quad(shown, 0, math.inf)[0] == pytest.approx(0.8, abs=1e-5)


def test_many_seeds_need_the_normal_sum():
    normal = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert detectable(3.0, 100_000) == pytest.approx(3 * normal / math.sqrt(100_000), rel=1e-4)


def test_only_seeds_of_both_count():
    both = paired({0: 90.0, 1: 5.0, 2: 7.0}, {1: 4.0, 2: 4.0, 3: 0.0})
    assert (both.first, both.second, both.seeds) == (6.0, 4.0, 2)
    assert paired({1: 1.0, 2: 2.0}, {2: 1.0, 3: 1.0}) is None
    with pytest.raises(ConfigError, match="expected two at least"):
        half_width(1.0, 1)


def test_lower_may_be_better_and_records_may_be_few():
    both = paired(by_seed(20.0, 20.0), by_seed(30.0, 30.0), sign=-1, allowed=3.0)
    assert (both.low, both.difference, both.high, both.detectable) == (7.0, 10.0, 13.0, 3.0)


def ours(expected, first, second, **more):
    """The only comparison of two settings at the laptop's scale, by their seeds' scores."""

    def side(values):
        mean, deviation = np.mean(values), np.std(values, ddof=1) if len(values) > 1 else None
        return {"ours": mean, "deviation": deviation, "by_seed": by_seed(*values)} | more

    asked = check(expected.kind, FULL, LORA, ends=(expected.low, expected.high))
    asked = type(asked)(**{**vars(asked), "expected": expected})
    rows = (row(FULL, 0.0, **side(first)), row(LORA, 0.0, **side(second)))
    found = compare_cells(asked, Evidence(*rows))[0]
    (one,) = (one for one in found if one.side is Side.LAPTOP)
    return one


# Differences 1, 2 and 3: the interval is 2 -+ 2.48.
WIDE = ([61.0, 62.0, 63.0], [60.0, 60.0, 60.0])
# 1.9, 2.0, 2.1: 2 -+ 0.248.
TIGHT = ([61.9, 62.0, 62.1], [60.0, 60.0, 60.0])


@pytest.mark.parametrize(
    ("expected", "scores", "outcome"),
    [
        (Expected("above"), WIDE, NOT_APART),
        (Expected("above"), TIGHT, HOLDS),
        (Expected("above"), TIGHT[::-1], FAILS),
        (Expected("not_below", equivalence=1), WIDE, HOLDS),  # 0.6 of 60
        (Expected("not_below", equivalence=1), WIDE[::-1], NOT_APART),
        (Expected("not_below", equivalence=1), TIGHT[::-1], FAILS),
        (Expected("not_below", equivalence=4), TIGHT[::-1], HOLDS),
        (Expected("on_par", equivalence=1), WIDE, NOT_APART),
        (Expected("on_par", equivalence=1), TIGHT, FAILS),
        (Expected("on_par", equivalence=4), TIGHT, HOLDS),
        (Expected("apart", 1.5, 2.5), TIGHT, HOLDS),
        (Expected("apart", 1.9, 2.5), TIGHT, NOT_APART),
        (Expected("apart", 3, 5), TIGHT, FAILS),
    ],
)
def test_the_interval_takes_the_place_of_the_margin(expected, scores, outcome):
    one = ours(expected, *scores)
    assert one.outcome is outcome
    assert one.numbers["seeds"] == 3
    assert "over 3 seeds" in one.text


def test_one_seed_keeps_the_margin_and_says_so():
    one = ours(Expected("above"), [62.0], [60.0])
    assert (one.outcome, one.paired) == (HOLDS, None)
    assert "1 seed in common: by the margin" in one.text
    # What is as good with several seeds, the claim must say.
    assert ours(Expected("on_par"), *TIGHT).paired is None


def test_few_scored_records_widen_the_interval():
    one = ours(Expected("above"), *TIGHT, sampling=1.5)
    assert (one.outcome, one.numbers["detectable"]) == (NOT_APART, 3.0)


def test_verdicts_of_claims_that_seeds_decide():
    holds = ours(Expected("above"), *TIGHT)
    fails, open_ = ours(Expected("above"), *TIGHT[::-1]), ours(Expected("above"), *WIDE)
    by_margin = ours(Expected("above"), [62.0], [60.0])
    assert counted(judge([holds, holds])) == "confirmed here (2 of 2 hold)"
    assert counted(judge([fails])) == "contradicted here (0 of 1 hold)"
    assert counted(judge([open_])) == "not told apart with 3 seeds (0 of 1 hold)"
    text = "confirmed here (1 of 2 hold, 1 not told apart with 3 seeds)"
    assert counted(judge([holds, open_])) == text
    # One of one seed leaves the words of the margin.
    assert judge([holds, by_margin]).verdict is Verdict.HOLDS
    assert judge([holds, fails]).verdict is Verdict.MIXED
