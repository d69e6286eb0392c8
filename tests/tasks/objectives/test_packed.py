"""Examples in flat arrays are the examples that were packed."""

import numpy as np
import pytest

from dpft.runs.array_store import ArrayWriter
from dpft.tasks.objectives.base import cut_in_encoding
from dpft.tasks.objectives.causal import CausalExample
from dpft.tasks.objectives.classifier import ClassExample, InfillExample
from dpft.tasks.objectives.image import ImageExample
from dpft.tasks.objectives.packed import Packed, Packer, fields, lengths, pack, values

EXAMPLES = {
    "causal": [
        CausalExample(tuple(range(n)), (n, 65_000), cut_source=n % 2, cut_target=n)
        for n in range(1, 9)
    ],
    "typed": [ClassExample(tuple(range(n)), (1,) * n, n % 3, n % 2) for n in range(8)],
    "plain": [ClassExample(tuple(range(n)), None, n % 3, n % 2) for n in range(8)],
    "infill": [InfillExample(tuple(range(n)), n // 2, n % 3, 1) for n in range(1, 9)],
}


def packed(examples, size=3, kind="uint16"):
    writer = ArrayWriter()
    packer = Packer(writer)
    for start in range(0, len(examples), size):
        packer.add(pack(examples[start : start + size], kind))
    return Packed(type(examples[0]), writer.in_memory({}))


@pytest.mark.parametrize("examples", EXAMPLES.values(), ids=EXAMPLES)
def test_packed_examples_are_the_same(examples):
    found = packed(examples)
    assert found == examples
    assert [vars(one) for one in found] == [vars(one) for one in examples]  # what == passes over
    assert found[-1] == examples[-1]
    assert found[2:4] == examples[2:4]
    with pytest.raises(IndexError):
        found[len(examples)]
    assert all(type(token) is int for token in found[3].__dict__.get("ids", (1,)))
    for of in (lengths, lambda some: values(some, "cut_source"), lambda some: values(some, "none")):
        assert of(found).tolist() == of(examples).tolist()
    assert lengths(found).tolist() == [example.length for example in examples]
    assert cut_in_encoding(found) == cut_in_encoding(examples)


def test_tokens_that_do_not_fit_are_an_error():
    with pytest.raises(OverflowError):
        pack([CausalExample((65_536,), (1,))], "uint16")
    assert packed([CausalExample((65_536,), (1,))], kind="int32")[0].prompt == (65_536,)


def test_a_field_is_there_or_not():
    with pytest.raises(ValueError, match="types is None in 1 of 2"):
        pack([EXAMPLES["typed"][2], EXAMPLES["plain"][2]], "uint16")


def test_what_is_more_than_numbers_is_not_packed():
    assert fields(ImageExample) is None
    assert fields(int) is None
    assert fields(CausalExample) == {
        "prompt": True, "target": True, "silent": True, "cut_source": False, "cut_target": False
    }  # fmt: skip
    assert np.array_equal(values([object()], "cut_source"), [0])
