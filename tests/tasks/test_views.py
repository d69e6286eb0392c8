"""Sequences that make their items on access, and the owners of records."""

from itertools import pairwise
from operator import neg

import numpy as np
import pytest

from dpft.tasks.views import Mapped, Owners

NUMBERS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize(
    ("view", "items"),
    [
        (Mapped(neg, NUMBERS), [-n for n in NUMBERS]),
        (Owners.of(map(str, NUMBERS)), [str(n) for n in NUMBERS]),
    ],
)
def test_a_view_is_read_as_the_list_of_its_items(view, items):
    assert list(view) == items
    assert view == items
    assert view != items[1:]
    assert (len(view), view[0], view[-1]) == (len(items), items[0], items[-1])
    for part in (slice(2, 5), slice(-2, None), slice(9, 12)):
        assert list(view[part]) == items[part]
    with pytest.raises(IndexError):
        view[len(items)]


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
