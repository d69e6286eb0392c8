"""Which settings make another experiment."""

import copy

import pytest

from dpft.tables.matching import match_key
from tests.tables.example import plan, run_of


@pytest.fixture
def config():
    return copy.deepcopy(dict(run_of(plan(), "full").run.raw))


@pytest.mark.parametrize(("sample", "same"), [(False, True), (True, False)])
def test_the_batch_size_counts_where_texts_are_sampled(config, sample, same):
    """Texts of one batch share a stream of random numbers; searches do not."""
    config["decode"] = {**config["decode"], "sample": sample, "batch_size": 32}
    other = {**config, "decode": {**config["decode"], "batch_size": 8}}
    assert (match_key(config) == match_key(other)) is same
