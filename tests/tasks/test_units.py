"""Units: weights, choices and microbatches of users with many and with few records."""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpft.privacy.sampling import BLANK, FixedShapes, padded
from dpft.tasks.objectives.objective import Batch
from dpft.tasks.units import Records, Users, finite_losses
from dpft.tasks.views import Owners

MOST = 4


@dataclass(frozen=True)
class Example:
    number: int
    length: int = 3


class Objective:
    """The loss of example ``n`` is ``values[n]``, by default ``n`` itself."""

    def __init__(self, values=None):
        self.values = values or {}

    def collate(self, examples):
        assert examples
        return Batch({"number": torch.tensor([example.number for example in examples])})

    def losses(self, model, batch):
        numbers = batch.tensors["number"].tolist()
        return torch.tensor([self.values.get(n, float(n)) for n in numbers], dtype=torch.float64)


def users(owners, most=MOST, lengths=None, key=b"key", values=None):
    lengths = lengths or [3] * len(owners)
    examples = [Example(n, length) for n, length in enumerate(lengths)]
    return Users(Objective(values), examples, owners, most, key)


def taken(data, name, owners, step):
    """Numbers of the examples of one user that take part in a step."""
    batch = data.batch([sorted(set(owners)).index(name)], step)
    return batch.batch.tensors["number"][batch.shares[0] > 0].tolist()


NAMES = ["ann", "bob", "cy", "anna@example.org", "anna@example.com", "é"]
owner_lists = st.lists(st.sampled_from(NAMES), min_size=1, max_size=40)


@given(owners=owner_lists, most=st.integers(1, 6), step=st.integers(0, 9), data=st.data())
def test_weights_of_a_user_add_up_to_one_over_its_own_records(owners, most, step, data):
    people = sorted(set(owners))
    chosen = data.draw(st.lists(st.sampled_from(range(len(people))), min_size=1, unique=True))
    batch = users(owners, most).batch(chosen, step)
    numbers = batch.batch.tensors["number"].view(batch.shares.shape)
    for row, weights, user in zip(numbers.tolist(), batch.shares, chosen, strict=True):
        # Rows that fill up are the user's own too.
        assert {owners[n] for n in row} == {people[user]}
        used = [n for n, weight in zip(row, weights.tolist(), strict=True) if weight > 0]
        assert len(used) == len(set(used)) == min(most, owners.count(people[user]))
        assert weights[weights > 0].unique().tolist() == [1 / len(used)]
        assert weights.sum().item() == pytest.approx(1, abs=1e-15)
        assert used == sorted(used)


@given(owners=owner_lists, extra=st.lists(st.integers(0, 40), max_size=12), step=st.integers(0, 5))
def test_another_user_changes_no_other_users_choices(owners, extra, step):
    """Wherever in the file that user's records are, and wherever the name is in the alphabet."""
    before = users(owners)
    for newcomer in ("aaa", "bz", "zz"):
        mixed = [(owner, n) for n, owner in enumerate(owners)]
        for number, place in enumerate(extra):
            mixed.insert(min(place, len(mixed)), (newcomer, 100 + number))
        examples = [Example(n) for _, n in mixed]
        after = Users(Objective(), examples, [owner for owner, _ in mixed], MOST, b"key")
        everyone = [owner for owner, _ in mixed]
        for name in set(owners):
            assert taken(after, name, everyone, step) == taken(before, name, owners, step)


@given(
    owners=owner_lists,
    lengths=st.lists(st.integers(1, 20), min_size=40, max_size=40),
    most=st.integers(1, 5),
    budget=st.integers(1, 400),
    data=st.data(),
)
def test_microbatches_hold_every_user_once_within_the_budget(owners, lengths, most, budget, data):
    """Of the tokens that are computed: as many rows and positions for all as the largest needs."""
    found = users(owners, most, lengths[: len(owners)])
    batch = data.draw(st.lists(st.sampled_from(range(len(found))), unique=True))
    pieces = found.microbatches(batch, budget)
    assert sorted(i for piece in pieces for i in piece) == sorted(batch)
    people = sorted(set(owners))
    for piece in pieces:
        made = found.batch(piece, 0)
        own = [lengths[n] for n, owner in enumerate(owners) if owner in {people[i] for i in piece}]
        assert len(piece) == 1 or len(made) * made.rows_per_unit * max(own) <= budget


def test_the_choice_is_drawn_anew_each_step_and_evenly_from_the_key_and_the_name():
    owners, steps = ["ann"] * 20 + ["bob"] * 20 + ["cy"] * 3, 2000
    data = users(owners)
    draws = [tuple(taken(data, "ann", owners, step)) for step in range(steps)]
    assert len(set(draws)) > 1500  # of 4,845
    counts = Counter(n for draw in draws for n in draw)
    assert set(counts) == set(range(20))
    expected = steps * MOST / 20
    assert max(abs(count - expected) for count in counts.values()) < 5 * (expected * 0.8) ** 0.5
    assert {tuple(taken(data, "cy", owners, step)) for step in range(9)} == {(40, 41, 42)}
    few = draws[:20]
    again, other = users(owners), users(owners, key=b"other")
    assert few == [tuple(taken(again, "ann", owners, step)) for step in range(20)]
    assert few != [tuple(taken(other, "ann", owners, step)) for step in range(20)]
    bobs = [tuple(n - 20 for n in taken(data, "bob", owners, step)) for step in range(20)]
    assert few != bobs


def test_a_users_loss_is_the_mean_over_its_records_and_not_over_the_rows():
    data = users(["ann", "bob", "bob", "bob", "cy", "cy"])
    batch = data.batch([0, 1, 2], 0)
    assert batch.rows_per_unit == 3
    torch.testing.assert_close(
        data.losses(None, batch), torch.tensor([0, 2, 4.5], dtype=torch.float64)
    )
    picked = batch.without(torch.tensor([False, True, False]))
    assert data.losses(None, picked).tolist() == [0, 4.5]


class Padded(Objective):
    """Examples are as wide as they are long; the blank is example -1."""

    def collate(self, examples, widths=None):
        assert widths is None or all(example.length <= widths[0] for example in examples)
        return super().collate(examples)

    def widths(self, example, coarse=False):
        return (padded(example.length, 64),)

    def widest(self):
        return (64,)

    def blank(self):
        return Example(-1, 1)


def test_units_that_are_left_out_of_a_batch_of_fixed_shape_become_blanks():
    data = Records(Padded({1: float("nan")}), [Example(n) for n in range(40)], FixedShapes(100))
    [piece] = data.microbatches([0, 1, 2], 1000)
    assert len(piece) == 8
    whole = data.batch(piece, 0)
    losses, batch = finite_losses(data, None, whole)
    assert len(batch) == len(whole) == 8
    assert batch.weights.tolist() == [True, False, True] + 5 * [False]
    assert losses.tolist() == [0, -1, 2] + 5 * [-1]
    assert batch.of_units(losses).tolist() == [0, 2]
    padding, none = finite_losses(data, None, batch.without(torch.ones(8, dtype=torch.bool)))
    assert padding.tolist() == 8 * [-1]
    assert not none.weights.any()
    weights = np.array([0.5, 0.25, 1])
    weighed = Records(Objective({1: math.nan}), [Example(n) for n in range(3)], None, weights)
    losses, batch = finite_losses(weighed, None, weighed.batch([0, 1, 2], 0))
    assert (losses.tolist(), batch.weights.tolist()) == ([0, 2], [0.5, 1])


def test_a_user_is_computed_in_shapes_of_its_own():
    owners = ["ann", *["bob"] * 3, *["cy"] * 9, "dee"]
    lengths = [3, 3, 20, 3, *[30] * 9, 5]
    examples = [Example(n, length) for n, length in enumerate(lengths)]
    data = Users(Padded(), examples, owners, MOST, b"key", FixedShapes(100))
    pieces = data.microbatches(range(4), 1000)
    assert [[i for i in piece if i >= 0] for piece in pieces] == [[0, 3], [1], [2]]
    for piece, rows in zip(pieces, (1, 4, 4), strict=True):
        batch = data.batch(piece, 0)
        assert batch.rows_per_unit == rows
        assert batch.shares.sum(1).tolist() == [1] * len(piece)
        assert batch.weights.tolist() == [i >= 0 for i in piece]


def test_all_units_have_one_shape_where_batches_have_one_size():
    owners = ["ann", *["bob"] * 3, *["cy"] * 9, "dee"]
    examples = [Example(n, length=30) for n in range(len(owners))]
    shapes = FixedShapes(3, places=6)
    for data, rows in (
        (Users(Padded(), examples, owners, MOST, b"key", shapes), MOST),
        (Records(Padded(), examples, shapes), 1),
    ):
        for drawn in ([0, 1, 2, 3], [1], []):
            given = [*drawn, *[BLANK] * (6 - len(drawn))]
            pieces = data.microbatches(given, 5 * 64 * rows)
            assert [len(piece) for piece in pieces] == [4, 4]
            made = [data.batch(piece, 0) for piece in pieces]
            assert [len(batch.batch) for batch in made] == [4 * rows, 4 * rows]
            assert [i for batch in made for i in batch.weights.tolist()].count(True) == len(drawn)


def test_a_loss_that_is_not_finite_spoils_its_unit_alone_and_never_reaches_the_clipper():
    nan, inf = float("nan"), float("inf")
    losses = (data := users(["ann", "bob", "bob", "cy"], values={2: nan, 3: inf})).losses(
        None, data.batch([0, 1, 2], 0)
    )
    assert (losses[0], losses[1].isnan(), losses[2].isinf()) == (0, True, True)
    data = Records(Objective({2: nan, 3: inf}), [Example(n) for n in range(5)])
    for indices, kept in (([0, 1, 2, 3, 4], [0, 1, 4]), ([0, 4], [0, 4]), ([2, 3], [])):
        losses, batch = finite_losses(data, None, data.batch(indices, 0))
        assert losses.tolist() == kept
        assert len(batch) == len(kept)


def test_owners_are_numbered_in_the_order_of_their_names():
    names = ["zoe", "ann", "zoë", "bob", "ann", "\U0001f600", "\uff41nn", "zoe", "Bob", "anna"]
    owners, ordered = Owners.of(names), sorted(set(names))
    assert owners.names == ordered
    assert [ordered[code] for code in owners.codes] == names
    order, bounds = owners.groups()
    groups = [order[a:b].tolist() for a, b in pairwise(bounds)]
    assert groups == [[i for i, n in enumerate(names) if n == name] for name in ordered]
    part = owners.part(np.array([1, 3, 4]))
    assert part == ["ann", "bob", "ann"]
    assert part.names == ["ann", "bob"]
    assert Owners.of([]).names == []
