"""Whatever is drawn, each record is clipped once, by one rank or by all stages, in every layout.

That sums of shares are then the sums of one process is what `test_matrix` and `test_pipeline` show.
"""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.parallel.cohort import Pipeline, Replicas
from dpft.parallel.sharded import Shards
from dpft.privacy.shapes import BLANK, FixedShapes
from dpft.tasks.objectives.causal import CausalExample
from dpft.tasks.units import Records, Users

RECORDS = 20


class Widths:
    """Of an objective what microbatches are cut by."""

    def widths(self, example, coarse=False):
        return (-(-example.length // 4) * 4 + 4, 8)


def units(users, fixed):
    """Records of several lengths, or users with one to four of them."""
    random = np.random.default_rng(0)
    examples = [
        CausalExample(*(tuple(random.integers(1, 11, random.integers(1, 7))) for _ in range(2)))
        for _ in range(RECORDS)
    ]
    shapes = FixedShapes(32) if fixed else None
    if not users:
        return Records(Widths(), examples, shapes)
    owners = [f"user {int(number**0.7)}" for number in range(RECORDS)]
    return Users(Widths(), examples, owners, 3, b"key", shapes)


def ranks_of(layout, size):
    """The cohorts of so many ranks, as far as shares go; no process has joined another."""
    kind = {"data": Replicas, "fsdp": Shards, "pipeline": Pipeline}[layout]
    made = [object.__new__(kind) for _ in range(size)]
    for rank, cohort in enumerate(made):
        cohort.rank, cohort.size = rank, size
    return made


@settings(max_examples=40)
@given(
    drawn=st.sets(st.integers(0, RECORDS - 1)).map(sorted),
    layout=st.sampled_from(("data", "fsdp", "pipeline")),
    size=st.integers(1, 4),
    tokens=st.integers(1, 120),
    users=st.booleans(),
    fixed=st.booleans(),
)
def test_shares_are_what_is_drawn(drawn, layout, size, tokens, users, fixed):
    data = units(users, fixed)
    drawn = [unit for unit in drawn if unit < len(data)]

    def cut(indices):
        return data.microbatches(indices, tokens)

    pieces = [cohort.pieces(drawn, cut) for cohort in ranks_of(layout, size)]
    if layout == "pipeline":  # its ranks go through the same; each clips what it has of the model
        assert all(own == pieces[0] for own in pieces)
        pieces = pieces[:1]
    if layout == "fsdp":  # who runs a layer waits for all
        assert len({len(own) for own in pieces}) == 1
    clipped = Counter(unit for own in pieces for piece in own for unit in piece if unit != BLANK)
    assert clipped == Counter(drawn)
