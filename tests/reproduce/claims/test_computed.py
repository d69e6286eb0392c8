"""What follows without a run."""

from dpft.reproduce.claims import computed
from dpft.reproduce.claims.claim import ComputedCheck, load
from dpft.reproduce.claims.evaluate import compute
from dpft.reproduce.claims.rule import Word
from dpft.reproduce.figures.computed import Layer, peaks

CHECKS = [one for claim in load() for one in claim.checks if isinstance(one, ComputedCheck)]


def test_every_function_is_used_and_one_claim_fails_in_part():
    assert {check.function for check in CHECKS} == set(computed.FUNCTIONS)
    results = [(check.function, one) for check in CHECKS for one in compute(check)]
    assert all(one.what and one.text and one.origin == "computed" for _, one in results)
    fails = [function for function, one in results if one.word is not Word.HOLDS]
    assert fails == ["embedding_memory"]


def test_the_formula_leaves_out_the_ends_of_a_group():
    layers = [Layer(T=1, d=d, p=p, block=0) for d, p in ((1, 10), (2, 20), (4, 40), (8, 80))]
    groups = ((0, 3), (3, 4))
    assert peaks(layers, groups) == [7 + 70, 15 + 80]
    assert computed.peaks_as_printed(layers, groups) == [3 + 20, 7]
