"""What follows without a run."""

import math

import pytest

from dpft.reproduce.claims import computed, load
from dpft.reproduce.claims.comparison import Outcome
from dpft.reproduce.claims.evaluate import compute
from dpft.reproduce.claims.schema import ComputedCheck
from dpft.reproduce.figures.memory import Layer, peaks
from dpft.reproduce.papers import PaperError

CHECKS = [one for claim in load() for one in claim.checks if isinstance(one, ComputedCheck)]


def test_every_function_is_used_and_one_claim_fails_in_part():
    assert {check.function for check in CHECKS} == set(computed.FUNCTIONS)
    results = [(check.function, one) for check in CHECKS for one in compute(check)]
    assert all(one.what and one.text and "value" in one.numbers for _, one in results)
    fails = [function for function, one in results if one.outcome is not Outcome.HOLDS]
    assert fails == ["embedding_memory"]


@pytest.mark.parametrize(
    ("function", "of", "what"),
    [("bell_numbers", {}, ""), ("bell_numbers", {"layers": 3}, "{groups}"), ("bell", {"n": 3}, "")],
)
def test_arguments_and_texts_that_do_not_fit_are_errors(function, of, what):
    check = ComputedCheck(function, what, (None, 1.0), (of,))
    with pytest.raises((PaperError, KeyError), match=function):
        list(compute(check))


def test_bell_numbers():
    assert [computed.bell(n) for n in (1, 2, 3, 9, 18)] == [1, 2, 5, 21147, 682076806159]


def test_the_embedding_needs_more_than_22_times_less_unless_both_matrices_are_held():
    ratios = [computed.embedding_memory(1024, matrices)["value"] for matrices in (1, 2)]
    assert ratios == pytest.approx([36.81, 18.40], abs=0.01)


def test_the_square_root_rule_falls_short_by_more_the_smaller_the_rate():
    ratios = [computed.square_root_rule(k)["value"] for k in (9, 10, 11, 12)]
    assert ratios == sorted(ratios)
    assert ratios[0] > 1.4


def test_the_bound_rises_with_groups():
    for xi in (0.0, 100.0):
        assert computed.bound_rises_with_groups(xi)["value"] > 1


def test_no_thresholds_per_layer_do_what_one_does():
    numbers = computed.clippings_not_nested(3.5)
    assert numbers == pytest.approx({"value": 1.1, "needed": 2.4, "alone": 2.4, "together": 3.5})


def test_the_formula_leaves_out_the_ends_of_a_group():
    layers = [Layer(T=1, d=d, p=p, block=0) for d, p in ((1, 10), (2, 20), (4, 40), (8, 80))]
    groups = ((0, 3), (3, 4))
    assert peaks(layers, groups) == [7 + 70, 15 + 80]
    assert computed.peaks_as_printed(layers, groups) == [3 + 20, 7]


def test_peaks_fall_with_more_groups():
    heights = [computed.highest_peak(name)["value"] for name in ("one group", "24 groups")]
    assert heights[0] > 2 > heights[1] > 1
    assert computed.peaks_fall()["value"] < 1


def test_quantiles_cost_a_root():
    costs = [computed.cost_of_quantiles(share)["value"] for share in (0.01, 0.1)]
    assert costs == pytest.approx([1 / math.sqrt(0.99), 1 / math.sqrt(0.9)])


def test_only_ghost_clipping_needs_a_second_backward():
    passes = {style: computed.backward_passes(style)["value"] for style in ("none", "ghost", "bk")}
    assert passes == {"none": 1, "ghost": 2, "bk": 1}


def test_a_scaled_loss_needs_a_scaled_threshold():
    assert computed.scaled_loss(1024, scaled_threshold=True)["value"] < 1e-6
    assert computed.scaled_loss(1024, scaled_threshold=False)["value"] > 0.5
