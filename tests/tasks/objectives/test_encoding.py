"""Encoding all records: the same one by one, together, and kept."""

import pyarrow as pa
import pytest

from dpft.tasks.objectives.classifier import ClassExample, Classifier, ImageExample
from dpft.tasks.objectives.generation import Causal, CausalExample
from dpft.tasks.objectives.objective import (
    Packed,
    cut_in_encoding,
    encoded,
    lengths,
    pack,
    schema_of,
    values,
)
from dpft.tasks.objectives.record_types import LabelledText, TextRecord
from dpft.tasks.objectives.tokens import token_ids
from tests.tasks.objectives.support import standin, wordpiece

TEXTS = [
    "", " ", "a", "The kettle leaks no more.", "<|endoftext|> [SEP] [MASK] </s>", "zoë \U0001f600",
    "two\nlines\r\n", "x" * 400, "word " * 300, "  spaces  within  ", "\u2028\u00a0", "##s unkind",
]  # fmt: skip


def byte_level():
    return standin("roberta", "masked")[1]


@pytest.mark.parametrize("make", [None, wordpiece, byte_level])
def test_tokens_are_those_of_the_tokenizer_itself(make, tiny):
    tokenizer = make() if make else tiny.tokenizer
    # What was asked of it before plays no part.
    tokenizer("word " * 9, truncation=True, max_length=3, padding="max_length")
    expected = [tokenizer.encode(x, add_special_tokens=False, verbose=False) for x in TEXTS]
    tokenizer("word " * 9, truncation=True, max_length=3, padding="max_length")
    assert token_ids(tokenizer, TEXTS) == [ids if x else [] for x, ids in zip(TEXTS, expected)]  # noqa: B905


@pytest.mark.parametrize("make", [wordpiece, byte_level])
def test_classified_texts_are_encoded_equally_together_and_alone(make):
    for texts in ([(x,) for x in TEXTS], [(x, y) for x in TEXTS[:7] for y in TEXTS[:7]]):
        some = [LabelledText(pair, n % 2) for n, pair in enumerate(texts)]
        for length in (8, 2000):
            objective = Classifier(make(), length, ("a", "b"))
            together = objective.encode_all(some)
            assert together == [objective.encode(record) for record in some]
            cut = [objective.encode(record).cut_source for record in some]
            assert [example.cut_source for example in together] == cut


def test_all_records_are_encoded_in_order(tiny, monkeypatch):
    monkeypatch.setattr("dpft.tasks.objectives.objective.PIECE", 7)
    causal = Causal(tiny.tokenizer, 32, before="Say: ", after=" Now:", cut="source")
    texts = [((TEXTS[n % 12], f"{n}"), f"{TEXTS[-n % 11]} {n}") for n in range(30)]
    records, counted = [TextRecord(*text) for text in texts], []
    found = encoded(causal, records, counted.append)
    assert isinstance(found, Packed)
    assert found == [causal.encode(record) for record in records]
    assert counted == [7, 7, 7, 7, 2]


@pytest.mark.parametrize(
    "example",
    [
        lambda n: CausalExample(tuple(range(n)), (n, 65_000), cut_source=n % 2, cut_target=n),
        lambda n: ClassExample(tuple(range(n)), None if n == 5 else (1,) * n, n % 3, n % 2),
        lambda n: ClassExample(tuple(range(n)), None, n % 3, 1, n // 2),  # infilling
    ],
)
def test_packed_examples_are_the_same(example):
    examples = [*map(example, range(1, 9))]
    kind = type(examples[0])
    schema = schema_of(kind)
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
    assert schema_of(ImageExample) is schema_of(int) is None
