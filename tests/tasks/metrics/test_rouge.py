"""ROUGE of SAMSum on cases worked out by hand."""

import pytest

from dpft.tasks.metrics import rouge

PREDICTION = "Amanda baked cookies and will bring Jerry some tomorrow."
REFERENCE = "Amanda is baking cookies for Jerry."


def test_the_known_case():
    # 9 and 6 words share amanda, bake, cooki, jerri: 8/15; one pair of 8 and 5: 2/13.
    assert rouge.score([PREDICTION], [[REFERENCE]]) == pytest.approx(
        {"ROUGE_1": 100 * 8 / 15, "ROUGE_2": 100 * 2 / 13, "ROUGE_L": 100 * 8 / 15}
    )


def test_words_are_stemmed():
    assert rouge.score(["walking dogs"], [["walked dog"]])["ROUGE_2"] == pytest.approx(100)


def test_scores_are_means_of_the_best_reference():
    scores = rouge.score(["red fish", "x"], [["blue cow", "red fish"], ["y"]])
    assert scores == pytest.approx({"ROUGE_1": 50, "ROUGE_2": 50, "ROUGE_L": 50})


def test_order_matters_to_rouge_l_only():
    scores = rouge.score(["one two three"], [["three two one"]])
    assert scores == pytest.approx({"ROUGE_1": 100, "ROUGE_2": 0, "ROUGE_L": 100 / 3})
