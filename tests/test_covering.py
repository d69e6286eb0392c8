"""Every pair of values is in one of the combinations, and there are few of them."""

from hypothesis import given
from hypothesis import strategies as st

from tests.covering import covering, pairs_of, possible


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(0, 5))
def test_no_pair_is_lost_and_none_that_is_excluded_is_tried(sizes, forbidden):
    def excluded(*values):
        return sum(values) == forbidden

    factors = [range(size) for size in sizes]
    chosen = covering(*factors, excluded=excluded)
    assert pairs_of(chosen) == pairs_of(possible(*factors, excluded=excluded))
    assert not any(map(excluded, *zip(*chosen, strict=True))) if chosen else True
