"""Corpus BLEU with sacrebleu's defaults."""

import math

import pytest

from dpft.tasks.metrics import bleu


def test_by_hand():
    """Precisions 4/5, 3/4, 2/3, 1/2 and no brevity penalty."""
    expected = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    assert bleu.score(["a b c d e"], [["a b c d x"]]) == pytest.approx(expected)


def test_shorter_than_the_reference_is_penalised():
    assert bleu.score(["a b c d"], [["a b c d e"]]) == pytest.approx(100 * math.exp(1 - 5 / 4))


def test_the_number_of_references_may_differ():
    assert bleu.score(["a b c d", "w x y z"], [["no", "a b c d"], ["w x y z"]]) == pytest.approx(
        100
    )


def test_case_counts_and_an_empty_answer_scores_nothing():
    assert bleu.score(["A B C D"], [["a b c d"]]) < 1
    assert bleu.score([""], [["a b c d"]]) == 0
