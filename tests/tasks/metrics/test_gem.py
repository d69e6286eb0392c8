"""DART's scores: jackknifed ROUGE by hand, and raw text elsewhere."""

from __future__ import annotations

from functools import partial

import pytest

from dpft.tasks.metrics import gem
from dpft.tasks.metrics.scorers import bleu
from tests.tasks.metrics.restaurants import PREDICTIONS, REFERENCES

lower_bleu = partial(bleu, lowercase=True)
# Printed by gem-metrics (commit 8162210, October 2022) for the corpus of `restaurants`.
OFFICIAL = {"BLEU": 37.4975, "METEOR": 0.3567471847}
OFFICIAL |= {"ROUGE_1": 54.915, "ROUGE_2": 33.828, "ROUGE_L": 41.894}


@pytest.mark.slow
def test_the_corpus_scores_as_officially() -> None:
    scores = gem.score(PREDICTIONS, REFERENCES)
    assert scores == pytest.approx(OFFICIAL, abs=1e-3)
    assert scores["METEOR"] == pytest.approx(OFFICIAL["METEOR"], abs=1e-9)


def test_rouge_without_java_scores_as_officially() -> None:
    scores = gem.rouge(PREDICTIONS, REFERENCES)
    scores |= {"BLEU": lower_bleu(PREDICTIONS, REFERENCES)}
    for name, value in scores.items():
        assert value == pytest.approx(OFFICIAL[name], abs=1e-3), name


# ROUGE.


def left_out(scores: list[float]) -> float:
    """The jackknife as it is defined: one set of references for each that is left out."""
    sets = [[s for j, s in enumerate(scores) if j != i] for i in range(len(scores))]
    return sum(map(max, sets)) / len(sets)


@pytest.mark.parametrize("scores", [[1.0, 0.5], [0.2, 0.9, 0.4], [0.5, 0.5, 0.1, 0.0], [0.0, 0.0]])
def test_the_jackknife_leaves_each_reference_out(scores: list[float]) -> None:
    assert gem.jackknife(scores) == pytest.approx(left_out(scores))
