"""Bits of right answers, and the error that the scored records leave to a difference."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpft.tasks.metrics.correct import packed, paired_error, unpacked


@given(st.lists(st.booleans(), max_size=70))
def test_bits_come_back(right):
    assert unpacked(packed(right), len(right)) == tuple(right)


def test_bits_of_another_number_of_records_are_refused():
    assert packed([True] + [False] * 8) == "gAA="
    for count in (8, 17):
        with pytest.raises(ValueError, match="expected those of"):
            unpacked("gAA=", count)
    with pytest.raises(ValueError, match="base64 data"):
        unpacked("?", 1)


def test_the_error_is_that_of_paired_answers():
    """Of one seed it is McNemar's: the records on which the two differ count."""
    first = {1: [True] * 70 + [False] * 30}
    second = {1: [True] * 60 + [False] * 30 + [True] * 10}
    differing, ahead = 20, 0.0  # ten each way
    expected = math.sqrt(differing - 100 * ahead**2 + 1) / 100
    assert paired_error(first, second) == pytest.approx(expected)
    assert paired_error(first, first) == pytest.approx(0.01)


def test_seeds_that_err_alike_leave_the_error_and_others_lessen_it():
    draw = np.random.default_rng(0)
    one, other = draw.random(400) < 0.8, draw.random(400) < 0.8
    alike = paired_error(dict.fromkeys((1, 2, 3), one), dict.fromkeys((1, 2, 3), other))
    assert alike == pytest.approx(paired_error({1: one}, {1: other}))
    sides = [{seed: draw.random(400) < 0.8 for seed in (1, 2, 3)} for _ in range(2)]
    assert paired_error(*sides) == pytest.approx(alike / math.sqrt(3), rel=0.15)


def test_it_covers_other_records_of_the_same_kind():
    """Two models that err together: the error of the difference, drawn anew two thousand times."""
    draw = np.random.default_rng(1)
    kinds = np.array(list(product((True, False), repeat=2)))
    odds = (0.75, 0.06, 0.04, 0.15)
    samples = [kinds[draw.choice(4, 300, p=odds)] for _ in range(2000)]
    found = [one[:, 0].mean() - one[:, 1].mean() for one in samples]
    told = np.mean([paired_error({1: one[:, 0]}, {1: one[:, 1]}) for one in samples[:200]])
    assert told == pytest.approx(np.std(found), rel=0.05)
    share = math.sqrt(0.8 * 0.2 / 300)  # of either accuracy by itself
    assert told < 0.85 * share
