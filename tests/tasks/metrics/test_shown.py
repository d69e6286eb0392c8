"""Presentation of scores, the numbers that they are compared with, and which there will be."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.reproduce.papers import load, names
from dpft.tasks import load_task
from dpft.tasks.scores import (
    MOST_CLASSES,
    cautions,
    check_metric,
    confused,
    figure,
    lower_is_better,
    majority,
    packed,
    paired_error,
    recalls,
    shown,
    unpacked,
)

E2E = "bleu:nrefs:var|case:ascii-lc+nist:order:5|case:ascii-lc|tok:13a+coco:pycocoevalcap:1.2"
GEM = "bleu:nrefs:var|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0"
TRUE = ["yes", "yes", "no", "yes", "no"]


@pytest.mark.parametrize(
    ("metric", "value", "signature", "expected"),
    [
        ("BLEU", 0.59069, E2E, "59.07"),
        ("METEOR", 0.3953, E2E, "0.3953"),
        ("BLEU", 0.4, GEM, "0.4000"),  # a bad model's
        ("BLEU", None, E2E, "-"),
        ("BLEU", 34.5, f"{GEM}; nist:order:5|mine:1.0", "34.5000"),
        ("ROUGE_L", 0.63009, f"{E2E}; mine:1.0", "63.01"),
    ],
)
def test_the_scale_follows_from_the_scorer(metric, value, signature, expected):
    assert figure(metric, value, signature) == expected
    if value is not None:
        assert shown(metric, value, signature) == pytest.approx(float(expected), abs=0.005)


def test_the_most_frequent_class_and_confusion_are_counted_by_hand():
    assert majority(TRUE) == 3 / 5
    answered = ["yes", "no", "no", "yes", "yes"]
    counts = confused(answered, TRUE, ("no", "yes", "unseen"))
    assert counts["confusion"] == {"no": {"no": 1, "yes": 1}, "yes": {"no": 1, "yes": 2}}
    assert confused(TRUE, TRUE, [f"{n}" for n in range(MOST_CLASSES + 1)]) == {}


def test_a_constant_answer_and_a_score_no_better_are_reported():
    scored = {
        "metrics": {"accuracy": 0.6}, "examples": 5, "distinct": 1,
        "baselines": {"accuracy": 0.6}, "confusion": {"yes": {"yes": 3}, "no": {"yes": 2}},
    }  # fmt: skip
    same, no_better = cautions(scored)
    assert same == "all 5 answers are the same, 'yes': nothing was learned"
    assert no_better.startswith("accuracy 0.6000 is no better than always answering")
    assert cautions({**scored, "metrics": {"accuracy": 0.61}, "distinct": 2}) == []
    assert recalls(scored) == "yes 1.00 of 3, no 0.00 of 2"
    # Records of one class say nothing about what was learned.
    assert len(cautions({**scored, "confusion": {"yes": {"yes": 5}}})) == 1


@given(st.lists(st.booleans(), max_size=70))
def test_bits_come_back(right):
    assert unpacked(packed(right), len(right)) == tuple(right)


def test_the_error_is_that_of_paired_answers():
    """With one seed it is McNemar's: the records on which the two differ count."""
    first = {1: [True] * 70 + [False] * 30}
    second = {1: [True] * 60 + [False] * 30 + [True] * 10}
    differing, ahead = 20, 0.0  # ten each way
    expected = math.sqrt(differing - 100 * ahead**2 + 1) / 100
    assert paired_error(first, second) == pytest.approx(expected)
    assert paired_error(first, first) == pytest.approx(0.01)


@pytest.fixture(autouse=True)
def _no_meteor(monkeypatch):
    """Its start takes seconds, and the scores' names are asked for here, not their values."""
    monkeypatch.setattr("dpft.tasks.metrics.coco.meteor", lambda *_: 0.5)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("mnli", "accuracy_mismatched"),
        ("personachat", "token_perplexity"),
        ("samsum", "ROUGE_L"),
    ],
)
def test_every_score_of_a_task_is_known_beforehand(name, metric):
    run = parse(compose([f"task={name}", "task.source=sample"]))
    task = load_task(run.task)
    check_metric(metric, task, run.decode.split)
    with pytest.raises(ConfigError, match=f"did you mean '{metric}'"):
        check_metric(f"{metric}_", task, run.decode.split)


def test_papers_columns_have_the_direction_of_their_metric():
    assert lower_is_better("accuracy", ("accuracy",)), "as a task of the user's says"
    for name in names():
        for column in load(*name.split("/")).columns:
            for metric in column.metrics:
                assert column.higher_is_better is not lower_is_better(metric), (name, metric)
