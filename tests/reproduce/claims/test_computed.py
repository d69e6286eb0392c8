"""What follows without a run."""

import math

import pytest

from dpft.reproduce.claims import computed
from dpft.reproduce.claims.claim import ComputedCheck, load
from dpft.reproduce.claims.comparison import Outcome
from dpft.reproduce.claims.evaluate import compute
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
    [("bell_numbers", {}, ""), ("bell_numbers", {"layers": 3}, "{groups}"), ("magic", {}, "")],
)
def test_arguments_and_texts_that_do_not_fit_are_errors(function, of, what):
    check = ComputedCheck(function, what, (None, 1.0), (of,))
    with pytest.raises(PaperError, match=function):
        list(compute(check))


def test_bell_numbers():
    ways = [computed.bell_numbers(n)["ways"] for n in (1, 2, 3, 9, 18)]
    assert ways == [1, 2, 5, 21147, 682076806159]


def test_the_square_root_rule_falls_short_by_more_the_smaller_the_rate():
    ratios = [computed.square_root_rule(k)["value"] for k in (9, 10, 11, 12)]
    assert ratios == sorted(ratios)
    assert ratios[0] > 1.4


def test_no_thresholds_per_layer_do_what_one_does():
    numbers = computed.clippings_not_nested(3.5)
    assert numbers == pytest.approx({"value": 1.1, "needed": 2.4, "alone": 2.4, "together": 3.5})


def test_the_formula_leaves_out_the_ends_of_a_group():
    layers = [Layer(T=1, d=d, p=p, block=0) for d, p in ((1, 10), (2, 20), (4, 40), (8, 80))]
    groups = ((0, 3), (3, 4))
    assert peaks(layers, groups) == [7 + 70, 15 + 80]
    assert computed.peaks_as_printed(layers, groups) == [3 + 20, 7]


def test_quantiles_cost_a_root():
    costs = [computed.cost_of_quantiles(share)["value"] for share in (0.01, 0.1)]
    assert costs == pytest.approx([1 / math.sqrt(0.99), 1 / math.sqrt(0.9)])


def test_only_ghost_clipping_needs_a_second_backward():
    passes = {style: computed.backward_passes(style)["value"] for style in ("none", "ghost", "bk")}
    assert passes == {"none": 1, "ghost": 2, "bk": 1}


def test_a_scaled_loss_needs_a_scaled_threshold():
    assert computed.scaled_loss(1024, scaled_threshold=True)["value"] < 1e-6
    assert computed.scaled_loss(1024, scaled_threshold=False)["value"] > 0.5


@pytest.fixture
def calls(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFT_CACHE_DIR", str(tmp_path / "cache"))
    calls = []

    def third(x):
        calls.append(x)
        return {"value": x / 3}

    monkeypatch.setattr(computed, "FUNCTIONS", {"third": third})
    return calls


def test_a_number_is_computed_once_for_the_same_code_and_arguments(calls, monkeypatch):
    for x in (1, 2, 1, 2):
        assert computed.numbers_of("third", {"x": x}) == {"value": x / 3}
    assert calls == [1, 2]
    monkeypatch.setattr(computed, "_code", lambda: "other")
    computed.numbers_of("third", {"x": 1})
    assert calls == [1, 2, 1]


@pytest.mark.parametrize("content", ["{", "[]", "{}", None])
def test_a_damaged_or_unwritable_cache_costs_time_alone(calls, tmp_path, content):
    file = tmp_path / "cache" / "claims.json"
    if content is None:
        file.parent.write_text("a file")
    else:
        file.parent.mkdir()
        file.write_text(content)
    assert computed.numbers_of("third", {"x": 1}) == {"value": 1 / 3}
    assert calls == [1]
