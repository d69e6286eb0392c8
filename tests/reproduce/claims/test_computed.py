"""What follows without a run."""

import math

import pytest

from dpft.reproduce.claims.comparison import Outcome
from dpft.reproduce.claims.computed import FUNCTIONS, compute
from dpft.reproduce.claims.exact import bell
from dpft.reproduce.claims.peaks import as_printed
from dpft.reproduce.figures.memory import Layer, peaks


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_function_compares_something(name):
    found = compute(name)
    assert found
    assert all(one.known and one.what and one.found for one in found)
    fails = [one for one in found if one.outcome is not Outcome.HOLDS]
    assert len(fails) == (1 if name == "embedding_memory" else 0)


def test_bell_numbers():
    assert [bell(n) for n in (1, 2, 3, 9, 18)] == [1, 2, 5, 21147, 682076806159]


def test_the_embedding_needs_more_than_22_times_less_unless_both_matrices_are_held():
    ratios = [one.numbers["value"] for one in compute("embedding_memory")]
    assert ratios[:2] == pytest.approx([36.81, 18.40], abs=0.01)


def test_the_square_root_rule_falls_short_by_more_the_smaller_the_rate():
    ratios = [one.numbers["value"] for one in compute("square_root_rule")]
    assert ratios == sorted(ratios)
    assert ratios[0] > 1.4


def test_the_formula_leaves_out_the_ends_of_a_group():
    layers = [Layer(T=1, d=d, p=p, block=0) for d, p in ((1, 10), (2, 20), (4, 40), (8, 80))]
    groups = ((0, 3), (3, 4))
    assert peaks(layers, groups) == [7 + 70, 15 + 80]
    assert as_printed(layers, groups) == [3 + 20, 7]


def test_quantiles_cost_a_root():
    one, ten = (one.numbers["value"] for one in compute("cost_of_quantiles"))
    assert (one, ten) == pytest.approx((1 / math.sqrt(0.99), 1 / math.sqrt(0.9)))
