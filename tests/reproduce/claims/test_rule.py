"""The statistical rule, against numbers that were worked out by hand or by scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from dpft.reproduce.claims.rule import Difference, Word, combined, holm, judge

INF = math.inf
ABOVE = (0.0, INF)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_interval_and_p_values_are_scipys(seeds):
    draw = np.random.default_rng(seeds)
    first, second = draw.normal(60, 2, seeds), draw.normal(58, 2, seeds)
    difference = Difference.over_seeds((first - second).tolist())
    result = stats.ttest_rel(first, second)
    assert difference.interval == pytest.approx(tuple(result.confidence_interval(0.95)))
    assert min(difference.p_values(*ABOVE)) == pytest.approx(result.pvalue)
    assert difference.p_values(-1, 1)[0] == pytest.approx(  # two one-sided tests
        min(1, 2 * max(
            stats.ttest_1samp(first - second, -1, alternative="greater").pvalue,
            stats.ttest_1samp(first - second, 1, alternative="less").pvalue,
        ))
    )  # fmt: skip


def test_the_error_of_the_test_set_adds_to_that_of_the_seeds():
    # s = 1 over three seeds, and 1.5 points of the records: 4.303 sqrt(1/3 + 2.25).
    low, high = Difference.over_seeds([1.0, 2.0, 3.0], 1.5).interval
    half = 4.302653 * math.sqrt(1 / 3 + 2.25)
    assert (low, high) == pytest.approx((2 - half, 2 + half), abs=1e-4)
    # Without seeds it alone counts, by the normal distribution.
    assert Difference(2.0, 1.5).interval[0] == pytest.approx(2 - 1.959964 * 1.5, abs=1e-4)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


# Differences 1.9, 2.0 and 2.1: the interval is 2 -+ 0.248. Of 1, 2, 3 it is 2 -+ 2.48.
TIGHT, WIDE = [1.9, 2.0, 2.1], [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("differences", "bounds", "word"),
    [
        (TIGHT, ABOVE, Word.TENDS_TO_HOLD),
        ([-x for x in TIGHT], ABOVE, Word.TENDS_TO_FAIL),
        (WIDE, ABOVE, Word.INCONCLUSIVE),
        (WIDE, (-0.6, INF), Word.TENDS_TO_HOLD),  # a margin is decided by the interval
        ([-x for x in WIDE], (-0.6, INF), Word.INCONCLUSIVE),
        ([-x for x in WIDE], (-3.0, INF), Word.INCONCLUSIVE),  # though the mean is within it
        ([-x for x in TIGHT], (-0.6, INF), Word.TENDS_TO_FAIL),
        (TIGHT, (-2.4, 2.4), Word.TENDS_TO_HOLD),
        (TIGHT, (-2.2, 2.2), Word.INCONCLUSIVE),
        (TIGHT, (-0.6, 0.6), Word.TENDS_TO_FAIL),
        (TIGHT, (3.0, 5.0), Word.TENDS_TO_FAIL),
        (TIGHT[:2], ABOVE, Word.CONSISTENT),
        ([1.0, 3.0], ABOVE, Word.INCONCLUSIVE),
        ([*TIGHT, 2.0], ABOVE, Word.TENDS_TO_HOLD),
        ([*TIGHT, *TIGHT], ABOVE, Word.CONFIRMED),
        ([-x for x in (*TIGHT, *TIGHT)], ABOVE, Word.CONTRADICTED),
    ],
)
def test_one_comparison(differences, bounds, word):
    ((found, _),) = judge([(Difference.over_seeds(differences), *bounds)])
    assert found is word
    mirrored = Difference.over_seeds([-x for x in differences])
    assert judge([(mirrored, -bounds[1], -bounds[0])])[0][0] is word


@pytest.mark.parametrize(
    ("difference", "word"),
    [
        (Difference(0.1, 0.0, 1), Word.CONSISTENT),
        (Difference(-0.1, 0.0), Word.NOT_CONSISTENT),
        (Difference(0.0, 0.0), Word.INCONCLUSIVE),
        (Difference(1.0, 1.0, 1), Word.INCONCLUSIVE),
        (Difference(9.0, INF, 5), Word.INCONCLUSIVE),
    ],
)
def test_numbers_without_paired_seeds(difference, word):
    assert judge([(difference, *ABOVE)])[0][0] is word


def test_many_comparisons_make_each_harder():
    borderline = (Difference.over_seeds([1.0, 1.6, 1.9]), *ABOVE)  # p = 0.029
    assert judge([borderline])[0][0] is Word.TENDS_TO_HOLD
    open_ = (Difference.over_seeds(WIDE), *ABOVE)
    assert [word for word, _ in judge([borderline, open_])] == [Word.INCONCLUSIVE] * 2
    # A comparison that is decided beyond doubt takes nothing from the others.
    sure = (Difference(5.0, 0.0), *ABOVE)
    assert judge([borderline, sure])[0][0] is Word.TENDS_TO_HOLD


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ("CONFIRMED TENDS_TO_HOLD HOLDS", Word.TENDS_TO_HOLD),  # the weakest link
        ("CONFIRMED HOLDS", Word.CONFIRMED),
        ("CONFIRMED NOT_YET CANNOT", Word.CONFIRMED),
        ("CONFIRMED INCONCLUSIVE", Word.INCONCLUSIVE),
        ("TENDS_TO_FAIL INCONCLUSIVE NOT_CONSISTENT", Word.TENDS_TO_FAIL),  # one is enough
        ("CONFIRMED TENDS_TO_FAIL", Word.MIXED),
        ("HOLDS FAILS INCONCLUSIVE", Word.MIXED),
        ("CONSISTENT NOT_CONSISTENT", Word.NOT_CONSISTENT),  # a seed cannot settle either side
        ("CONFIRMED NOT_CONSISTENT", Word.NOT_CONSISTENT),
        ("CONSISTENT CONTRADICTED", Word.CONTRADICTED),
        ("FAILS INCONCLUSIVE", Word.FAILS),
        ("NOT_YET CANNOT", Word.NOT_YET),
        ("CANNOT", Word.CANNOT),
        ("", Word.CANNOT),
    ],
)
def test_a_claim_is_all_of_its_comparisons(words, word):
    assert combined([Word[name] for name in words.split()]) is word
