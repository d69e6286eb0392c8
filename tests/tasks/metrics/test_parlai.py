"""ParlAI's F1 on cases worked out by hand."""

import pytest

from dpft.tasks.metrics.parlai import corpus_f1, f1, words


@pytest.mark.parametrize(
    ("prediction", "label", "expected"),
    [
        ("The cat sat on a mat!", "a cat is on the mat", 0.75),
        ("I'm a teacher", "i am a teacher", 2 / 3),
        ("well-known artist", "a well known artist", 1),
        ("hi hi hi", "hi there", 0.4),
        ("it is 3.5 stars", "it is 35 stars", 2 / 3),
        ("a an the", "the", 0),
        ("", "hello", 0),
        ("hello", "", 0),
    ],
)
def test_f1_by_hand(prediction, label, expected):
    assert f1(prediction, [label]) == pytest.approx(expected, abs=1e-12)


def test_all_ascii_punctuation_becomes_spaces_and_nothing_else_does():
    found = " ".join(words("a_b [c] `d` e\\f ~x^y| “q” Ünï the-end"))
    assert found == "b c d e f x y “q” ünï end"


def test_the_best_label_counts_and_examples_are_averaged():
    assert f1("red fish", ["blue cow", "red fish swims", "red"]) == pytest.approx(0.8)
    assert corpus_f1(["hi", "red fish"], [["bye"], ["red fish swims"]]) == pytest.approx(0.4)
