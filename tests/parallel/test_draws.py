"""Whatever is drawn, each record is clipped once, by one rank or by all stages, in every layout."""

from collections import Counter

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpft.parallel.cohort import Pipeline, Replicas, TrainingCohort
from dpft.parallel.sharded import Shards
from dpft.privacy import make_clipper
from dpft.privacy.shapes import BLANK, FixedShapes
from dpft.tasks.objectives.causal import CausalExample, collate
from dpft.tasks.units import Records, Users

KEY, VOCAB, RECORDS = b"key", 11, 20


class Bags:
    """A loss of a record's tokens, whatever their order, without a language model."""

    def collate(self, examples, widths=None):
        return collate(examples, widths)

    def widths(self, example, coarse=False):
        return (-(-example.length // 4) * 4 + 4, 8)

    def blank(self):
        return CausalExample((1,), (1,))

    def losses(self, model, batch):
        found = model(batch.tensors["input_ids"]).tanh().sum(2)
        return (found * batch.tensors["attention_mask"]).sum(1)


def units(users, fixed):
    """Records of several lengths, or users with one to four of them."""
    random = np.random.default_rng(0)
    examples = [
        CausalExample(*(tuple(random.integers(1, VOCAB, random.integers(1, 7))) for _ in range(2)))
        for _ in range(RECORDS)
    ]
    shapes = FixedShapes(32) if fixed else None
    if not users:
        return Records(Bags(), examples, shapes)
    owners = [f"user {int(number**0.7)}" for number in range(RECORDS)]
    return Users(Bags(), examples, owners, 3, KEY, shapes)


def ranks_of(layout, size):
    """The cohorts of so many ranks, as far as shares go; no process has joined another."""
    kind = {"data": Replicas, "fsdp": Shards, "pipeline": Pipeline}[layout]
    made = [object.__new__(kind) for _ in range(size)]
    for rank, cohort in enumerate(made):
        cohort.rank, cohort.size = rank, size
    return made


def summed(data, pieces, style):
    """The clipped sums of some microbatches by a process of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCAB, 3), nn.Linear(3, 2)).double()
    clipper = make_clipper(model, style, threshold=1.5)
    for piece in pieces:
        batch = data.batch(piece, 0)
        losses = data.losses(model, batch)
        clipper.backward(losses, rows=batch.rows_per_unit, real=batch.real)
    return [0 if p.grad is None else p.grad for p in clipper.parameters.values()]


@settings(max_examples=40)
@given(
    drawn=st.sets(st.integers(0, RECORDS - 1)).map(sorted),
    layout=st.sampled_from(("data", "fsdp", "pipeline")),
    size=st.integers(1, 4),
    tokens=st.integers(1, 120),
    users=st.booleans(),
    fixed=st.booleans(),
    style=st.sampled_from(("bk", "ghost", "per_layer")),
)
def test_shares_add_up_to_the_sums_of_one_process(drawn, layout, size, tokens, users, fixed, style):
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
    whole = summed(data, TrainingCohort().pieces(drawn, cut), style)
    of_ranks = zip(*(summed(data, own, style) for own in pieces), strict=True)
    for expected, parts in zip(whole, of_ranks, strict=True):
        np.testing.assert_allclose(sum(parts), expected, 1e-10, 1e-12)
