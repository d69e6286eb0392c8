"""Scores on cases worked out by hand, and those of DART on a corpus of which they are known."""

import math

import pytest

from dpft.tasks.metrics import coco, e2e_scores, gem
from dpft.tasks.metrics.scorers import (
    accuracy,
    bleu,
    class_f1,
    macro_f1,
    parlai_f1,
    rouge,
    token_perplexity,
)
from tests.tasks.metrics.restaurants import PREDICTIONS, REFERENCES

LN2 = math.log(2)


@pytest.mark.parametrize("score", [e2e_scores.score, gem.score, bleu, rouge, parlai_f1, accuracy])
@pytest.mark.parametrize(("predictions", "references"), [([], []), (["a"], [["a"], ["b"]])])
def test_unequal_or_empty_lists_are_refused(score, predictions, references):
    with pytest.raises(ValueError, match=f"references for {len(references)} items"):
        score(predictions, references)


def test_accuracy_and_f1_by_hand():
    assert accuracy(["a", "b", "b", "a"], ["a", "b", "a", "a"]) == 0.75
    # Two hits, one false alarm, one miss: precision 2/3, recall 2/3.
    predictions = ["yes", "yes", "yes", "no", "no"]
    references = ["yes", "yes", "no", "yes", "no"]
    assert class_f1(predictions, references, "yes") == pytest.approx(2 / 3)
    assert class_f1(predictions, references, "no") == pytest.approx(1 / 2)
    assert macro_f1(predictions, references) == pytest.approx((2 / 3 + 1 / 2) / 2)
    # Precision 1/4, recall 1: 2 * 1/4 / (5/4).
    assert class_f1(["yes"] * 4, ["yes", "no", "no", "no"], "yes") == pytest.approx(0.4)
    assert class_f1(["yes", "no"], ["no", "yes"], "yes") == 0.0
    assert class_f1(["no", "no"], ["no", "no"], "yes") == 0.0


def test_perplexity_is_taken_over_all_tokens_together():
    # 2 tokens at 1/4 each and 6 tokens with 4 bits in all: 8 bits over 8 tokens.
    assert token_perplexity([4 * LN2, 4 * LN2], [2, 6]) == pytest.approx(2.0)
    assert token_perplexity([1.0, None], [3, None]) is None
    for nll in (math.nan, math.inf, 1e9):
        assert token_perplexity([nll, 1.0], [2, 2]) is None
    with pytest.raises(ValueError, match="0 tokens"):
        token_perplexity([], [])


def test_bleu_by_hand():
    expected = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    assert bleu(["a b c d e"], [["a b c d x"]]) == pytest.approx(expected)
    assert bleu(["a b c d"], [["a b c d e"]]) == pytest.approx(100 * math.exp(1 - 5 / 4))
    # The number of references may differ.
    texts = ["a b c d", "w x y z"], [["no", "a b c d"], ["w x y z"]]
    assert bleu(*texts) == pytest.approx(100)
    assert bleu(["A B C D"], [["a b c d"]]) < 1
    texts = ["CAFÉ on the RIVER"], [["café on the river"]]
    assert bleu(*texts, lowercase=True) == pytest.approx(100)


def test_rouge_by_hand():
    # 9 and 6 words share amanda, bake, cooki, jerri: 8/15; one pair of 8 and 5: 2/13.
    prediction = "Amanda baked cookies and will bring Jerry some tomorrow."
    assert rouge([prediction], [["Amanda is baking cookies for Jerry."]]) == pytest.approx(
        {"ROUGE_1": 100 * 8 / 15, "ROUGE_2": 100 * 2 / 13, "ROUGE_L": 100 * 8 / 15}
    )
    best = rouge(["red fish", "x"], [["blue cow", "red fish"], ["y"]])
    assert best == pytest.approx({"ROUGE_1": 50, "ROUGE_2": 50, "ROUGE_L": 50})


def test_parlais_f1_by_hand():
    for prediction, label, expected in (
        ("The cat sat on a mat!", "a cat is on the mat", 0.75),
        ("I'm a teacher", "i am a teacher", 2 / 3),
        ("well-known artist", "a well known artist", 1),
        ("hi hi hi", "hi there", 0.4),
        ("a an the", "the", 0),
        ("a_b [c] `d` e\\f ~x^y| “q” Ünï the-end", "b c d e f x y “q” ünï end", 1),
    ):
        assert parlai_f1([prediction], [[label]]) == pytest.approx(expected, abs=1e-12), label
    # The best label counts, and examples are averaged.
    assert parlai_f1(["hi", "red fish"], [["bye"], ["cow", "red fish swims"]]) == pytest.approx(0.4)


def test_cocos_rouge_and_cider_by_hand():
    # Against "a b c d e f": P = 1, R = 1/2. Against "a x": P = 1/3, R = 1/2. Against "c": P = 1/3,
    # R = 1. So P = 1 and R = 1, and F = 1, though no reference equals the prediction.
    assert coco.rouge_l(["a b c"], [["a b c d e f", "a x", "c"]]) == pytest.approx(1.0)
    # Two words each: the unigrams and the bigram match fully, there are no longer n-grams.
    assert coco.cider(["a b", "c d"], [["a b"], ["c d"]]) == pytest.approx(10 * 2 / 4)


# Printed by gem-metrics (commit 8162210, October 2022) for the corpus of `restaurants`.
GEM = {"BLEU": 37.4975, "METEOR": 0.3567471847}
GEM |= {"ROUGE_1": 54.915, "ROUGE_2": 33.828, "ROUGE_L": 41.894}


@pytest.mark.slow
def test_the_corpus_scores_as_gem_metrics_does():
    scores = gem.score(PREDICTIONS, REFERENCES)
    assert scores == pytest.approx(GEM, abs=1e-3)
    assert scores["METEOR"] == pytest.approx(GEM["METEOR"], abs=1e-9)


def test_rouge_and_bleu_without_java_are_those_of_gem_metrics():
    scores = gem.rouge(PREDICTIONS, REFERENCES)
    scores |= {"BLEU": bleu(PREDICTIONS, REFERENCES, lowercase=True)}
    assert scores == pytest.approx({name: GEM[name] for name in scores}, abs=1e-3)


@pytest.mark.parametrize("scores", [[1.0, 0.5], [0.2, 0.9, 0.4], [0.5, 0.5, 0.1, 0.0], [0.0, 0.0]])
def test_the_jackknife_leaves_each_reference_out(scores):
    sets = [[s for j, s in enumerate(scores) if j != i] for i in range(len(scores))]
    assert gem.jackknife(scores) == pytest.approx(sum(map(max, sets)) / len(sets))
