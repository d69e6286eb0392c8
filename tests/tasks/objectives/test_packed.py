"""Examples in Arrow columns are the examples that were packed."""

import numpy as np
import pyarrow as pa
import pytest

from dpft.tasks.objectives.base import cut_in_encoding
from dpft.tasks.objectives.causal import CausalExample
from dpft.tasks.objectives.classifier import ClassExample, InfillExample
from dpft.tasks.objectives.image import ImageExample
from dpft.tasks.objectives.packed import Packed, lengths, pack, schema_of, values

EXAMPLES = {
    "causal": [
        CausalExample(tuple(range(n)), (n, 65_000), cut_source=n % 2, cut_target=n)
        for n in range(1, 9)
    ],
    "typed": [
        ClassExample(tuple(range(n)), None if n == 5 else (1,) * n, n % 3, n % 2) for n in range(8)
    ],
    "infill": [InfillExample(tuple(range(n)), n // 2, n % 3, 1) for n in range(1, 9)],
}


@pytest.mark.parametrize("examples", EXAMPLES.values(), ids=EXAMPLES)
def test_packed_examples_are_the_same(examples):
    kind = type(examples[0])
    schema = schema_of(kind, pa.uint16())
    batches = [pack(examples[start : start + 3], schema) for start in (0, 3, 6)]
    found = Packed(kind, pa.Table.from_batches(batches))
    assert found == examples
    assert [vars(one) for one in found] == [vars(one) for one in examples]  # what == passes over
    assert found[-1] == examples[-1]
    assert found[2:4] == examples[2:4]
    assert all(type(token) is int for token in found[3].__dict__.get("ids", (1,)))
    for of in (lengths, lambda some: values(some, "cut_source"), lambda some: values(some, "none")):
        assert of(found).tolist() == of(examples).tolist()
    assert cut_in_encoding(found) == cut_in_encoding(examples)


def test_tokens_that_do_not_fit_are_an_error():
    with pytest.raises((OverflowError, pa.ArrowInvalid)):
        pack([CausalExample((65_536,), (1,))], schema_of(CausalExample, pa.uint16()))


def test_only_numbers_and_tokens_are_packed():
    assert schema_of(ImageExample, pa.int32()) is schema_of(int, pa.int32()) is None
    assert np.array_equal(values([object()], "cut_source"), [0])
