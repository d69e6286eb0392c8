"""Encoding all records: the same one by one, together, and kept."""

from dataclasses import replace

import pyarrow as pa
import pytest

from dpft.config.schema import Model
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.tasks.keeping import Keeping
from dpft.tasks.objectives import encoding
from dpft.tasks.objectives.causal import Causal, LanguageModel
from dpft.tasks.objectives.classifier import Classifier
from dpft.tasks.objectives.encoding import encode_all, encoded, token_type
from dpft.tasks.objectives.packed import Packed
from dpft.tasks.objectives.records import LabelledText, TextRecord
from dpft.tasks.objectives.tokens import token_ids
from tests.tasks.objectives.encoders import byte_level, wordpiece

TEXTS = [
    "", " ", "a", "The kettle leaks no more.", "<|endoftext|> [SEP] [MASK] </s>", "zoë \U0001f600",
    "two\nlines\r\n", "x" * 400, "word " * 300, "  spaces  within  ", "\u2028\u00a0", "##s unkind",
]  # fmt: skip


@pytest.fixture(scope="module")
def tiny():
    return load_model(Model("tiny", "bundled:tiny"), Needs("causal"), seed=0).tokenizer


@pytest.fixture(scope="module")
def causal(tiny):
    return Causal(tiny, 32, before="Say: ", after=" Now:", cut="source")


def records(count):
    return [TextRecord((TEXTS[n % 12], f"{n}"), f"{TEXTS[-n % 11]} {n}") for n in range(count)]


@pytest.mark.parametrize("make", [lambda tiny: tiny, lambda _: wordpiece(), lambda _: byte_level()])
def test_tokens_are_those_of_the_tokenizer_itself(make, tiny):
    tokenizer = make(tiny)
    # What was asked of it before plays no part.
    tokenizer("word " * 9, truncation=True, max_length=3, padding="max_length")
    expected = [tokenizer.encode(x, add_special_tokens=False, verbose=False) for x in TEXTS]
    tokenizer("word " * 9, truncation=True, max_length=3, padding="max_length")
    assert token_ids(tokenizer, TEXTS) == [ids if x else [] for x, ids in zip(TEXTS, expected)]  # noqa: B905


@pytest.mark.parametrize("tokenizer", [wordpiece(), byte_level()])
def test_classified_texts_are_encoded_alike_together_and_alone(tokenizer):
    for texts in ([(x,) for x in TEXTS], [(x, y) for x in TEXTS[:7] for y in TEXTS[:7]]):
        some = [LabelledText(pair, n % 2) for n, pair in enumerate(texts)]
        for length in (8, 2000):
            objective = Classifier(tokenizer, length, ("a", "b"))
            together = objective.encode_all(some)
            assert together == [objective.encode(record) for record in some]
            assert [e.cut_source for e in together] == [
                objective.encode(r).cut_source for r in some
            ]


def test_a_class_that_says_only_how_one_record_is_encoded_is_heeded(tiny):
    class Mine(LanguageModel):
        def encode(self, record):
            return super().encode(TextRecord((), "mine"))

    some = records(3)
    assert encode_all(Mine(tiny, 32), some) == [LanguageModel(tiny, 32).encode(
        TextRecord((), "mine"))] * 3  # fmt: skip


def test_all_records_are_encoded_in_order(causal, monkeypatch):
    monkeypatch.setattr(encoding, "PIECE", 7)
    counted = []
    found = encoded(causal, records(30), counted.append)
    assert isinstance(found, Packed)
    assert found == [causal.encode(record) for record in records(30)]
    assert counted == [7, 7, 7, 7, 2]


def test_tokens_take_no_more_room_than_they_need(causal, tiny):
    assert token_type(causal) == pa.uint16()
    assert max(tiny.get_vocab().values()) < 2**16

    class Large:
        def get_vocab(self):
            return {"a": 2**16}

    assert token_type(replace(causal, tokenizer=Large())) == token_type(object()) == pa.int32()


# Kept.


class Counted(Causal):
    """Whose records are counted."""

    asked = 0

    def encode_all(self, records):
        Counted.asked += len(records)
        return super().encode_all(records)


def test_many_records_are_encoded_once(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "LARGE", 10)
    keeping = Keeping(tmp_path / "private/cache", pytest.fail, pytest.fail)

    def asked(objective, some, identity="one"):
        Counted.asked = 0
        found = encoded(objective, some, lambda n: None, keeping=keeping, identity=identity)
        assert found == [Causal.encode_all(objective, [record])[0] for record in some]
        return Counted.asked - 1  # the first is always encoded, to see what examples are

    monkeypatch.setattr(Counted, "__module__", "dpft.tasks.mine")
    assert asked(Counted(tiny, 32), records(9)) == 9
    assert not keeping.folder.exists()
    assert asked(Counted(tiny, 32), records(30)) == 30
    assert asked(Counted(tiny, 32), records(30)) == 0
    assert asked(Counted(tiny, 16), records(30)) == 30
    assert asked(Counted(tiny, 32), records(30)[::-1], "another") == 30
    monkeypatch.undo()
    monkeypatch.setattr(encoding, "LARGE", 10)
    assert asked(Counted(tiny, 32), records(30)) == 30  # of a class whose code is not known
