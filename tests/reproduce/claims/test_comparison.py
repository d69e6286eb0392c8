"""Comparisons of numbers whose outcome can be worked out by hand, and verdicts on claims."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
from scipy import stats

from dpft.reproduce.claims.claim import Expected
from dpft.reproduce.claims.comparison import (
    Comparison,
    Outcome,
    Score,
    Side,
    contrast,
    interval,
    judge,
)
from dpft.reproduce.claims.evaluate import compare_cells
from dpft.reproduce.claims.show import counted
from dpft.reproduce.tables.record_index import Answers, IndexedRun
from dpft.reproduce.tables.verdicts import Mark
from tests.reproduce.claims.example import Evidence, check, row

A, B = {"method": "full", "epsilon": 3}, {"method": "LoRA", "epsilon": 3}
FULL, LORA = {"method": "full"}, {"method": "LoRA"}
HOLDS, FAILS, CLOSE, INCONCLUSIVE = (
    Outcome.HOLDS,
    Outcome.FAILS,
    Outcome.CLOSE,
    Outcome.INCONCLUSIVE,
)
NOT_YET, CANNOT = Outcome.NOT_YET, Outcome.CANNOT


def compared(the_check, *rows, side=Side.PRINTED, **table):
    found = compare_cells(the_check, Evidence(*rows, **table))[0]
    return [one for one in found if one.side is side]


def printed(kind, first, second, ends=(None, None), *, higher=True, **more):
    """The only comparison of two printed numbers."""
    rows = (row(A, first, **more), row(B, second, **more))
    (one,) = compared(check(kind, FULL, LORA, ends=ends), *rows, higher=higher)
    return one


def ours(expected, first, second, side=Side.LAPTOP, **ends):
    """The only comparison of two numbers of ours: each with what `row` takes."""
    rows = (row(A, **{"printed": 0.0} | first), row(B, **{"printed": 0.0} | second))
    (one,) = compared(check(expected, FULL, LORA, **ends), *rows, side=side)
    return one


@pytest.mark.parametrize(
    ("kind", "first", "outcome"),
    [
        ("above", 90.0, HOLDS),
        # 1% of the larger, and half a unit of the only decimal: 0.8535.
        ("above", 85.0 + 0.8, CLOSE),
        ("above", 85.0 + 1.0, HOLDS),
        ("above", 80.0, FAILS),
        ("not_below", 84.2, HOLDS),
        ("not_below", 84.0, FAILS),
        ("on_par", 84.3, HOLDS),
        ("on_par", 87.0, FAILS),
    ],
)
def test_the_margin_decides_what_counts(kind, first, outcome):
    one = printed(kind, first, 85.0)
    assert one.outcome is outcome
    assert printed(kind, -first, -85.0, higher=False).outcome is outcome


def test_ours_are_compared_with_what_the_paper_copied():
    own, copied = {"ours": 88.0}, {"printed": 85.0, "source": "Somebody 2019"}
    assert ours("above", own, copied, Side.PAPER).outcome is HOLDS
    assert ours("above", own, copied, Side.LAPTOP).outcome is CANNOT
    assert ours("above", copied, copied, Side.PAPER).outcome is CANNOT


@pytest.mark.parametrize(
    ("kind", "first"), [("above", 50.0), ("not_below", 51.0), ("on_par", 50.0)]
)
def test_settings_that_learned_nothing_show_nothing(kind, first):
    idle = {"ours": 51.0, "marks": (Mark.CONSTANT,)}
    assert ours(kind, idle | {"ours": first}, idle).outcome is CLOSE
    # Compared with one that learned something it counts.
    one = ours(kind, idle | {"ours": first}, {"ours": 80.0})
    assert (one.outcome, one.idle) == (FAILS, True)
    by_seed = [idle | {"by_seed": dict.fromkeys(range(3), value)} for value in (51.0, 50.0)]
    assert ours("above", *by_seed).outcome is INCONCLUSIVE


# Intervals over seeds.


@pytest.mark.parametrize("seeds", [2, 3, 12])
def test_the_interval_is_scipys(seeds):
    draw = np.random.default_rng(seeds)
    first, second = draw.normal(60, 2, seeds), draw.normal(58, 2, seeds)
    low, high = interval((first - second).tolist())
    result = stats.ttest_rel(first, second)
    assert (low, high) == pytest.approx(tuple(result.confidence_interval(0.95)))
    assert interval([2.0, 2.0], least=3.0) == (-1.0, 5.0)


def by_seeds(expected, first, second, **more):
    def side(values):
        deviation = stdev(values) if len(values) > 1 else None
        by_seed = dict(enumerate(values, 1))
        return {"ours": fmean(values), "deviation": deviation, "by_seed": by_seed} | more

    return ours(expected, side(first), side(second))


# Differences 1, 2 and 3: the interval is 2 -+ 2.48.
WIDE = ([61.0, 62.0, 63.0], [60.0, 60.0, 60.0])
# 1.9, 2.0, 2.1: 2 -+ 0.248.
TIGHT = ([61.9, 62.0, 62.1], [60.0, 60.0, 60.0])


@pytest.mark.parametrize(
    ("expected", "scores", "outcome"),
    [
        (Expected("above"), WIDE, INCONCLUSIVE),
        (Expected("above"), TIGHT, HOLDS),
        (Expected("above"), TIGHT[::-1], FAILS),
        (Expected("not_below", equivalence=1), WIDE, HOLDS),  # 0.6 of 60
        (Expected("not_below", equivalence=1), WIDE[::-1], INCONCLUSIVE),
        (Expected("not_below", equivalence=1), TIGHT[::-1], FAILS),
        (Expected("on_par", equivalence=1), WIDE, INCONCLUSIVE),
        (Expected("on_par", equivalence=1), TIGHT, FAILS),
        (Expected("on_par", equivalence=4), TIGHT, HOLDS),
        (Expected("apart", 1.5, 2.5), TIGHT, HOLDS),
        (Expected("apart", 1.9, 2.5), TIGHT, INCONCLUSIVE),
        (Expected("apart", 3, 5), TIGHT, FAILS),
    ],
)
def test_the_interval_takes_the_place_of_the_margin(expected, scores, outcome):
    one = by_seeds(expected, *scores)
    assert (one.outcome, one.seeds) == (outcome, 3)


def right(*wrong, references="d"):
    return Answers(references, tuple(number not in wrong for number in range(400)))


def accuracies(first, second, silent=()):
    """Two settings of two seeds, by their right answers; silent seeds of the second hide them."""
    scores = []
    for answers, hidden in ((first, ()), (second, silent)):
        values = {seed: 100 * float(np.mean(one.right)) for seed, one in enumerate(answers)}
        known = {s: one for s, one in enumerate(answers) if s not in hidden}
        sampling = 100 * math.sqrt(0.9 * 0.1 / 400)
        scores.append(
            Score("x", fmean(values.values()), None, sampling, by_seed=values, answers=known)
        )
    column = replace(Evidence(row(FULL, 0.0)).only.columns[0], factor=100.0)
    return contrast(Comparison(Side.LAPTOP, "x", "", NOT_YET), Expected("above"), column, *scores)


def test_answers_to_the_same_records_count_instead_of_shares_of_them():
    """Of 400 records one setting errs on 40, the other on the same and eight more."""
    many, few = [right(*range(48))] * 2, [right(*range(40))] * 2
    one = accuracies(few, many)
    assert one.outcome is HOLDS
    half = 200 * math.sqrt(8 - 400 * (8 / 400) ** 2 + 1) / 400
    assert (one.numbers["low"], one.numbers["high"]) == pytest.approx((2 - half, 2 + half))
    # Of other records, or where one run does not say, two shares of so many.
    assert accuracies([right(*range(40), references="e"), few[1]], many).outcome is INCONCLUSIVE
    assert accuracies(few, many, silent=(1,)).outcome is INCONCLUSIVE


def best_of(*by_seed, first):
    rows = [
        row({"rate": rate}, 0.0, ours=fmean(scores.values()), by_seed=scores,
            runs=(IndexedRun(Path("abc"[rate % 3]), {}, 0, ""),))
        for rate, scores in enumerate(by_seed)
    ]  # fmt: skip
    (one,) = compared(check("best", {"rate": first}), *rows, side=Side.LAPTOP)
    return one


def test_the_best_at_a_seed_is_chosen_by_the_others():
    by_seed = [
        {1: 60.0, 2: 61.0, 3: 62.0},
        {1: 90.0, 2: 45.0, 3: 45.0},
        dict.fromkeys((1, 2, 3), 50.0),
    ]
    one = best_of(*by_seed, first=[0, 1])
    # Without seed 2, or 3, the second is the better one: 67.5.
    assert one.numbers["first"] == pytest.approx((60 + 45 + 45) / 3)
    assert one.runs == ("a", "b", "c")


# Verdicts.


def judged(*checks):
    """The verdict on a claim whose checks have these outcomes by the margin, in words."""
    return counted(
        judge(
            [
                Comparison(Side.PAPER, "x", "y", one, check=number)
                for number, outcomes in enumerate(checks)
                for one in outcomes
            ]
        )
    )


@pytest.mark.parametrize(
    ("checks", "text"),
    [
        (([HOLDS, CLOSE],), "holds (1 of 2 hold, 1 too close)"),
        (([FAILS, CLOSE],), "fails (0 of 2 hold, 1 too close)"),
        (([HOLDS, FAILS, FAILS],), "mixed (1 of 3 hold)"),
        (([CLOSE],), "too close to tell (0 of 1 hold)"),
        (([HOLDS, NOT_YET],), "holds so far (1 of 1 hold; 1 without numbers)"),
        (([NOT_YET, CANNOT],), "not yet testable"),
        (([CANNOT],), "cannot be tested here"),
        (([HOLDS, HOLDS], [CLOSE]), "holds in part (2 of 3 hold, 1 too close)"),
        (([HOLDS, CLOSE], [HOLDS]), "holds (2 of 3 hold, 1 too close)"),
    ],
)
def test_verdicts_by_the_margin(checks, text):
    assert judged(*checks) == text


def test_verdicts_by_seeds():
    holds, fails = by_seeds(Expected("above"), *TIGHT), by_seeds(Expected("above"), *TIGHT[::-1])
    open_ = by_seeds(Expected("above"), *WIDE)
    by_margin = by_seeds(Expected("above"), [62.0], [60.0])
    assert counted(judge([holds, holds])) == "confirmed here (2 of 2 hold)"
    assert counted(judge([fails])) == "contradicted here (0 of 1 hold)"
    # One interval of many may fail by chance; one check that fails is enough.
    text = "fails in part (0 of 3 hold, 2 inconclusive with 3 seeds)"
    assert counted(judge([fails, open_, open_])) == text
    assert judge([fails, *[replace(open_, check=2)] * 3]).verdict is Outcome.CONTRADICTED
    assert counted(judge([open_])) == "inconclusive with 3 seeds (0 of 1 hold)"
    assert judge([holds, open_]).verdict is Outcome.IN_PART
    # A setting that learned nothing, or a number by the margin, confirms nothing.
    for other in (replace(holds, idle=True), by_margin):
        assert judge([holds, other]).verdict is HOLDS
    assert judge([holds, fails]).verdict is Outcome.MIXED
