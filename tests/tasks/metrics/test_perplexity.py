"""Token perplexity on likelihoods that can be checked by hand."""

import math

import pytest

from dpft.tasks.metrics.perplexity import token_perplexity

LN2 = math.log(2)


def test_it_is_taken_over_all_tokens_together():
    # 2 tokens at 1/4 each and 6 tokens with 4 bits in all: 8 bits over 8 tokens.
    assert token_perplexity([4 * LN2, 4 * LN2], [2, 6]) == pytest.approx(2.0)
    # A mean over examples would give the same number for any lengths.
    assert token_perplexity([4 * LN2, 4 * LN2], [2, 2]) == pytest.approx(4.0)


def test_without_every_likelihood_there_is_no_perplexity():
    assert token_perplexity([None, None], [None, None]) is None
    assert token_perplexity([1.0, None], [3, None]) is None


@pytest.mark.parametrize("nll", [math.nan, math.inf, 1e9])
def test_a_diverged_model_has_none_that_a_record_could_hold(nll):
    assert token_perplexity([nll, 1.0], [2, 2]) is None


def test_wrong_counts_are_refused():
    with pytest.raises(ValueError, match="0 tokens"):
        token_perplexity([0.0], [0])
    with pytest.raises(ValueError, match="0 tokens"):
        token_perplexity([], [])
    with pytest.raises(ValueError, match=r"shorter|longer"):
        token_perplexity([1.0], [1, 2])
