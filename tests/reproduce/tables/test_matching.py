"""Which settings make another experiment."""

import copy

import pytest

from dpft.config.compose import compose
from dpft.reproduce.tables.matching import match_key, scored_with
from tests.reproduce.tables.example import plan, run_of


@pytest.fixture
def config():
    return copy.deepcopy(dict(run_of(plan(), "full").run.raw))


@pytest.mark.parametrize(("sample", "same"), [(False, True), (True, False)])
def test_the_batch_size_counts_where_texts_are_sampled(config, sample, same):
    """Texts of one batch share a stream of random numbers; searches do not."""
    config["decode"] = {**config["decode"], "sample": sample, "batch_size": 32}
    other = {**config, "decode": {**config["decode"], "batch_size": 8}}
    assert (match_key(config) == match_key(other)) is same


def with_clip(**settings):
    words = [f"clip.{name}={value}" for name, value in settings.items() if name != "clip"]
    return compose(["task=e2e", "eps=3", f"clip={settings['clip']}", *words])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"clip": "ghost"}, {"clip": "bk"}, True),  # the same clipped sums
        ({"clip": "ghost"}, {"clip": "flat"}, True),
        ({"clip": "ghost"}, {"clip": "per_layer"}, False),
        ({"clip": "ghost"}, {"clip": "flat_adaptive"}, False),
        ({"clip": "ghost"}, {"clip": "bk", "threshold": 0.5}, False),
        ({"clip": "ghost"}, {"clip": "none"}, False),
    ],
)
def test_how_a_sum_is_formed_makes_no_other_experiment(one, other, same):
    keys = {match_key(with_clip(**settings)) for settings in (one, other)}
    assert (len(keys) == 1) is same


def test_metrics_that_need_weights_belong_to_the_scores():
    plain = compose(["task=dart", "eps=3"])
    scored = compose(["task=dart", "eps=3", "task.bertscore=models/distilbert"])
    assert match_key(plain) == match_key(scored)
    assert scored_with("BERTScore", scored["task"]) == "distilbert"
    assert scored_with("BERTScore", plain["task"]) is None
    assert scored_with("BLEU", scored["task"]) is None
