"""Fixed shapes: what a unit is computed in follows from that unit alone."""

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dpft.privacy.sampling import BLANK, FixedShapes, padded

SHAPES = st.tuples(st.integers(1, 4), st.sampled_from([16, 24, 32, 48]), st.integers(1, 3))


@given(width=st.integers(1, 600), most=st.integers(1, 600))
def test_widths_hold_the_record_within_what_any_record_may_take(width, most):
    wide = padded(width, most)
    assert wide >= width
    assert wide <= max(width, most)
    if width >= 16:
        assert wide < 1.5 * width
    # Few widths: what is padded to one would be padded to the same from there.
    assert padded(wide, most) == wide


@given(
    shapes=st.lists(SHAPES, min_size=1, max_size=60),
    batch_size=st.integers(1, 400),
    budget=st.integers(1, 2000),
    data=st.data(),
)
def test_a_units_shapes_do_not_depend_on_its_company(shapes, batch_size, budget, data):
    cut = FixedShapes(batch_size)

    def seen(batch):
        found = {}
        for piece in cut.microbatches(batch, shapes.__getitem__, budget):
            units = [index for index in piece if index != BLANK]
            assert piece == units + [BLANK] * (len(piece) - len(units))
            assert units
            assert len(units) < len(piece)
            assert len({shapes[index] for index in units}) == 1
            found |= {index: (shapes[index], len(piece)) for index in units}
        return found

    drawn = data.draw(st.lists(st.sampled_from(range(len(shapes))), unique=True, min_size=1))
    among = seen(drawn)
    assert Counter(among.keys()) == Counter(drawn)
    for index in drawn:
        assert seen([index]) == {index: among[index]}
        shape, rows = among[index]
        assert rows == 2 or rows * shape[0] * shape[1] <= budget
    assert cut.microbatches([], shapes.__getitem__, budget) == []


@given(
    places=st.integers(1, 300),
    rows=st.integers(1, 4),
    budget=st.integers(1, 2000),
    data=st.data(),
)
def test_batches_of_one_size_are_the_same_microbatches_at_every_step(places, rows, budget, data):
    """Whatever was drawn: as many of them, all of one shape, and none of the units lost."""
    cut, shape = FixedShapes(64, places), (rows, 24)
    drawn = sorted(data.draw(st.sets(st.integers(0, 999), max_size=places)))
    pieces = cut.microbatches([*drawn, *[BLANK] * (places - len(drawn))], lambda i: shape, budget)
    assert [i for piece in pieces for i in piece if i != BLANK] == drawn
    full = cut.microbatches(range(places), lambda i: shape, budget)
    assert [len(piece) for piece in pieces] == [len(piece) for piece in full]
    assert len({len(piece) for piece in pieces}) == 1
    for piece in pieces:
        assert piece[-1] == BLANK
        assert len(piece) == 2 or len(piece) * math.prod(shape) <= budget
        assert cut.of(piece, lambda i: shape) == shape
    # Hardly any rows but the batch's own: one a microbatch, and what evens them out.
    assert sum(map(len, pieces)) - places < 2 * len(pieces)
