"""Accuracy and F1 by hand."""

import pytest

from dpft.tasks.metrics.classification import accuracy, f1


def test_accuracy_is_the_share_of_equal_names():
    assert accuracy(["a", "b", "b", "a"], ["a", "b", "a", "a"]) == 0.75
    assert accuracy(["a"], ["b"]) == 0.0


def test_f1_by_hand():
    # Two hits, one false alarm, one miss: precision 2/3, recall 2/3.
    predictions = ["yes", "yes", "yes", "no", "no"]
    references = ["yes", "yes", "no", "yes", "no"]
    assert f1(predictions, references, "yes") == pytest.approx(2 / 3)
    # Of the other class: one hit, one false alarm, one miss.
    assert f1(predictions, references, "no") == pytest.approx(1 / 2)
    # Precision 1/4, recall 1: 2 * 1/4 / (5/4).
    assert f1(["yes"] * 4, ["yes", "no", "no", "no"], "yes") == pytest.approx(0.4)


def test_f1_is_zero_where_nothing_is_hit_or_there_is_nothing_to_hit():
    assert f1(["yes", "no"], ["no", "yes"], "yes") == 0.0
    assert f1(["no", "no"], ["no", "no"], "yes") == 0.0
