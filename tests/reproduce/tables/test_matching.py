"""Which settings make another experiment."""

import copy

import pytest

from dpft.config.compose import compose
from dpft.reproduce.tables.record_index import match_key
from tests.reproduce.tables.example import plan, run_of

ELSEWHERE = {
    **{"task.data_dir": "D", "task.source": "files", "optim.microbatch_tokens": 8},
    **{"privacy.noise_seed": 5, "decode.split": "dev", "model.path": "copies/gpt2"},
    **{"optim.sampling_rate": None},  # not in the record, since it is the default
}


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        (ELSEWHERE, True),
        *(({"optim.lr": 0.1}, False), ({"task.limit_train": 10}, False)),
        *(({"task.source": "sample"}, False), ({"decode.beams": 2}, False)),
        ({"decode.batch_size": 8}, True),
        ({"privacy.epsilon": 99}, False),
    ],
)
def test_what_changes_a_score_is_another_experiment(settings, same):
    one, other = with_settings({}), with_settings(settings)
    assert (match_key(one) == match_key(other)) is same


def with_settings(settings, epsilon=3):
    """The configuration of a row with other settings; None: without a setting."""
    config = copy.deepcopy(dict(run_of(plan(), "full", epsilon).run.raw))
    for key, value in settings.items():
        group, _, leaf = key.partition(".")
        config[group] = {**config[group], leaf: value}
        if value is None:
            del config[group][leaf]
    return config


def with_clip(**settings):
    words = [f"clip.{name}={value}" for name, value in settings.items() if name != "clip"]
    return compose(["task=e2e", "eps=3", f"clip={settings['clip']}", *words])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"clip": "ghost"}, {"clip": "bk"}, True),  # the same clipped sums
        ({"clip": "ghost"}, {"clip": "materialised"}, True),
        ({"clip": "ghost"}, {"clip": "per_layer"}, False),
        ({"clip": "ghost"}, {"clip": "flat_adaptive"}, False),
        ({"clip": "ghost"}, {"clip": "bk", "threshold": 0.5}, False),
        ({"clip": "ghost"}, {"clip": "none"}, False),
    ],
)
def test_how_a_sum_is_formed_makes_no_other_experiment(one, other, same):
    keys = {match_key(with_clip(**settings)) for settings in (one, other)}
    assert (len(keys) == 1) is same
