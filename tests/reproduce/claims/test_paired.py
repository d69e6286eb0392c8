"""Intervals over seeds against closed forms and SciPy's tests, and the verdicts that follow."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, stats

from dpft.config.errors import ConfigError
from dpft.reproduce.claims.cells import compare_cells
from dpft.reproduce.claims.comparison import Comparison, Outcome, Score, Side, contrast
from dpft.reproduce.claims.judgement import Verdict, judge
from dpft.reproduce.claims.paired import detectable, half_width, paired
from dpft.reproduce.claims.report import counted
from dpft.reproduce.claims.schema import Expected
from dpft.reproduce.tables.record_index import Answers
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


@pytest.mark.parametrize(("kind", "seeds"), [("not_below", 3), ("on_par", 3), ("on_par", 6)])
def test_equal_settings_are_found_as_good_by_the_margin_that_is_named(kind, seeds):
    """By simulation, with the margin that the true deviation asks for."""
    power = {"not_below": 0.8, "on_par": 0.9}[kind]
    margin = detectable(2.0, seeds, power)
    draws = np.random.default_rng(1).normal(0, 2, (20_000, seeds))
    half = half_width(1.0, seeds) * draws.std(axis=1, ddof=1)
    mean = draws.mean(axis=1)
    found = (mean - half >= -margin) & ((kind == "not_below") | (mean + half <= margin))
    # Where the deviation is overestimated both sides fail together: two sides then need less.
    assert 0.79 < found.mean() < (0.81 if kind == "not_below" else 0.87)


@pytest.mark.parametrize(
    ("kind", "power", "said"),
    [
        ("above", 0.8, "; {} would have been shown with 80% power"),
        ("not_below", 0.8, " found as good with 80% power by {} of margin"),
        ("on_par", 0.9, " found as good with at least 80% power by {} of margin"),
    ],
)
def test_the_power_is_of_what_is_asked(kind, power, said):
    one = ours(Expected(kind, equivalence=None if kind == "above" else 1), *WIDE)
    needed = detectable(1.0, 3, power)
    assert one.text.endswith(said.format(f"{needed:.1f}"))
    assert one.numbers["detectable"] == pytest.approx(needed)


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
    assert (both.low, both.difference, both.high) == (7.0, 10.0, 13.0)
    # Two standard errors of the records, and 0.84 for four of five.
    assert both.detectable == pytest.approx(3.0 + 1.5 * stats.norm.ppf(0.8))


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


@pytest.mark.parametrize("kind", ["not_below", "on_par"])
def test_what_is_as_good_is_a_share_of_what_it_is_compared_with(kind):
    for scores, second in ((TIGHT, 60.0), (TIGHT[::-1], 62.0)):
        one = ours(Expected(kind, equivalence=2), *scores)
        assert one.numbers["margin"] == pytest.approx(0.02 * second)


def test_one_seed_keeps_the_margin_and_says_so():
    one = ours(Expected("above"), [62.0], [60.0])
    assert (one.outcome, one.paired) == (HOLDS, None)
    assert "1 seed in common: by the margin" in one.text
    # What is as good with several seeds, the claim must say.
    assert ours(Expected("on_par"), *TIGHT).paired is None


def test_few_scored_records_widen_the_interval():
    one = ours(Expected("above"), *TIGHT, sampling=1.5)
    assert one.outcome is NOT_APART
    both = math.hypot(1.5, 1.5)
    assert one.numbers["detectable"] == pytest.approx(both * (2 + stats.norm.ppf(0.8)))


def test_verdicts_of_claims_that_seeds_decide():
    holds = ours(Expected("above"), *TIGHT)
    fails, open_ = ours(Expected("above"), *TIGHT[::-1]), ours(Expected("above"), *WIDE)
    by_margin = ours(Expected("above"), [62.0], [60.0])
    assert counted(judge([holds, holds])) == "confirmed here (2 of 2 hold)"
    assert counted(judge([fails])) == "contradicted here (0 of 1 hold)"
    # One interval of many may fail by chance; one check that fails is enough.
    text = "fails in part (0 of 3 hold, 2 not told apart with 3 seeds)"
    assert counted(judge([fails, open_, open_])) == text
    # As many that fail as are open are enough.
    assert judge([fails, open_]).verdict is Verdict.CONTRADICTED
    other = [replace(open_, check=2)] * 3
    assert judge([fails, *other]).verdict is Verdict.CONTRADICTED
    assert counted(judge([open_])) == "not told apart with 3 seeds (0 of 1 hold)"
    text = "holds in part (1 of 2 hold, 1 not told apart with 3 seeds)"
    assert counted(judge([holds, open_])) == text
    # The number of seeds is what all comparisons have at least.
    more = ours(Expected("above"), [*TIGHT[0], 62.0], [60.0] * 4)
    assert (judge([holds, more]).seeds, judge([more]).seeds) == (3, 4)
    # What one of two settings did not learn at all says little of the other.
    idle = [replace(one, idle=True) for one in (holds, fails)]
    assert [judge([one]).verdict for one in idle] == [Verdict.HOLDS, Verdict.FAILS]
    assert judge([holds, idle[0]]).verdict is Verdict.HOLDS
    # One of one seed leaves the words of the margin.
    assert judge([holds, by_margin]).verdict is Verdict.HOLDS
    assert judge([holds, fails]).verdict is Verdict.MIXED


def right(*wrong, count=400, references="d"):
    return Answers(references, tuple(number not in wrong for number in range(count)))


def accuracies(first, second, silent=()):
    """Two settings of two seeds, by the records that each run answered rightly.

    Of the silent seeds the second setting does not say which they are.
    """
    sides = []
    for answers, untold in ((first, ()), (second, silent)):
        values = {seed: 100 * np.mean(one.right) for seed, one in enumerate(answers)}
        sampling = 100 * math.sqrt(0.9 * 0.1 / 400)
        sides.append(
            Score("x", np.mean([*values.values()]), sampling=sampling, by_seed=values,
                  answers={s: one for s, one in enumerate(answers) if s not in untold})
        )  # fmt: skip
    column = replace(Evidence(row(FULL, 0.0)).only.columns[0], factor=100.0)
    blank = Comparison(Side.LAPTOP, "x", "", Outcome.LACKING)
    return contrast(blank, Expected("above"), column, *sides)


@pytest.mark.parametrize("kind", ["above", "best"])
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_a_tie_over_all_seeds_tells_nothing_apart(kind, value):
    column = replace(Evidence(row(FULL, 0.0)).only.columns[0], metrics=("BLEU",))
    tied = Score("x", value, by_seed={0: value, 1: value, 2: value})
    blank = Comparison(Side.LAPTOP, "x", "", Outcome.LACKING)
    assert contrast(blank, Expected(kind), column, tied, tied).outcome is NOT_APART
    ahead = Score("y", value + 1, by_seed={0: value + 1, 1: value + 1, 2: value + 1})
    assert contrast(blank, Expected(kind), column, ahead, tied).outcome is HOLDS


def test_answers_to_the_same_records_count_instead_of_shares_of_them():
    """Of 400 records one setting errs on 40, the other on the same and eight more."""
    many = (right(*range(48)), right(*range(48)))
    few = (right(*range(40)), right(*range(40)))
    one = accuracies(few, many)
    assert one.outcome is HOLDS
    half = 200 * math.sqrt(8 - 400 * (8 / 400) ** 2 + 1) / 400
    assert (one.numbers["low"], one.numbers["high"]) == pytest.approx((2 - half, 2 + half))
    # Of other records, or where one run does not say, two shares of so many.
    other = (right(*range(40), references="e"), few[1])
    assert accuracies(other, many).outcome is NOT_APART
    for silent in ((0,), (1,), (0, 1)):
        assert accuracies(few, many, silent).outcome is NOT_APART
    assert accuracies(few, many).numbers["low"] > 0 > accuracies(other, many).numbers["low"]
