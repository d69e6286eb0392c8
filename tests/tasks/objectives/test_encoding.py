"""Encoding all records: the same one by one, together, by other processes, and kept."""

import errno
import os
import sys
from dataclasses import replace

import pytest

from dpft.config.errors import ConfigError, TrainingError
from dpft.config.schema import Model
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.runs.array_store import ArrayStore, ArrayWriter
from dpft.tasks.keeping import Keeping
from dpft.tasks.objectives import encoding, workers
from dpft.tasks.objectives.causal import Causal, LanguageModel
from dpft.tasks.objectives.classifier import Classifier
from dpft.tasks.objectives.encoding import encode_all, encoded, token_type
from dpft.tasks.objectives.packed import Packed, pack
from dpft.tasks.objectives.records import LabelledText, TextRecord
from dpft.tasks.objectives.tokens import token_ids
from tests.tasks.objectives.encoders import byte_level, wordpiece
from tests.tasks.objectives.light import Spell

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


def test_a_tokenizer_with_a_way_of_its_own_is_asked_itself(tiny):
    class Own(type(tiny)):
        def _encode_plus(self, text, *arguments, **keywords):
            return super()._encode_plus("a", *arguments, **keywords)

    own = Own(tokenizer_object=tiny.backend_tokenizer)
    assert token_ids(own, ["word word"]) == [own.encode("word word")] == token_ids(tiny, ["a"])


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


def test_classified_texts_without_room_are_refused_together_too():
    objective = Classifier(wordpiece(), 3, ("a", "b"))
    with pytest.raises(ConfigError, match="expected room for a token of each text"):
        objective.encode_all([LabelledText(("a b c", "a"), 0)])


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
    assert token_type(causal) == "uint16"
    assert max(tiny.get_vocab().values()) < 2**16

    class Large:
        def get_vocab(self):
            return {"a": 2**16}

    assert token_type(replace(causal, tokenizer=Large())) == token_type(object()) == "int32"


# Other processes.


def test_other_processes_encode_in_order_and_pass_on_what_goes_wrong():
    some = [chr(97 + n) * (n + 1) for n in range(9)]
    pieces = workers.in_processes(Spell(), [*some, "7"], "uint16", 3, 2)
    for start in (0, 3, 6):
        piece, alone = next(pieces), pack(encode_all(Spell(), some[start : start + 3]), "uint16")
        assert piece.keys() == alone.keys()
        assert all(piece[name].tolist() == alone[name].tolist() for name in alone)
    with pytest.raises(ValueError, match="got 7; expected letters"):
        next(pieces)


@pytest.mark.skipif("DPFT_LONG" not in os.environ, reason="processes that load transformers")
def test_other_processes_encode_with_the_models_tokenizer(causal, monkeypatch):
    monkeypatch.setattr(encoding, "_PER_PROCESS", 20)
    monkeypatch.setattr(encoding, "PIECE", 8)
    found = encoded(causal, records(50), lambda count: None, threads=3)
    assert found == [causal.encode(record) for record in records(50)]


def test_a_process_that_ends_by_itself_is_told(causal, monkeypatch):
    ends = [sys.executable, "-c", "raise SystemExit(9)"]
    monkeypatch.setattr(workers.Worker, "command", staticmethod(lambda pipe: ends))
    with pytest.raises(TrainingError, match=r"ended with 9; .*threads=1"):
        list(workers.in_processes(causal, records(5), "uint16", 2, 2))


# Kept.


class Counted(Causal):
    """Whose records are counted."""

    asked = 0

    def encode_all(self, records):
        Counted.asked += len(records)
        return super().encode_all(records)


@pytest.fixture
def keep(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "LARGE", 10)
    monkeypatch.setattr(encoding, "is_ours", lambda objective: True)
    monkeypatch.setattr(encoding, "usable_cores", lambda: 1)
    said = []
    keeping = Keeping(ArrayStore(tmp_path / "private/cache"), said.append, said.append)

    def keep(objective, some, identity="one"):
        Counted.asked = 0
        advanced = []
        found = encoded(objective, some, advanced.append, keeping=keeping, identity=identity)
        assert found == [Causal.encode_all(objective, [record])[0] for record in some]
        return Counted.asked - 1  # the first is always encoded, to see what examples are

    keep.said, keep.folder = said, keeping.store.folder
    return keep


def test_many_records_are_encoded_once(tiny, keep):
    assert keep(Counted(tiny, 32), records(30)) == 30
    assert keep(Counted(tiny, 32), records(30)) == 0
    assert keep(Counted(tiny, 16), records(30)) == 30
    assert keep(Counted(tiny, 32), records(30)[::-1], "another") == 30
    assert keep(Counted(tiny, 32), records(30)) == 0
    assert keep.said == []


def test_few_records_are_not_kept(tiny, keep):
    assert keep(Counted(tiny, 32), records(9)) == 9
    assert not keep.folder.exists()


def test_a_full_disk_is_told_and_the_run_goes_on(tiny, keep, monkeypatch):
    append = ArrayWriter.append

    def full(writer, column, values):
        if writer._folder is not None and column == "target":
            raise OSError(errno.ENOSPC, "No space left on device")
        append(writer, column, values)

    monkeypatch.setattr(ArrayWriter, "append", full)
    assert keep(Counted(tiny, 32), records(30)) == 60
    (said,) = keep.said
    assert "encoded records cannot be kept in" in said
    assert "No space left on device" in said
    assert "cache=none" in said
    assert not [path for path in keep.folder.iterdir() if path.is_dir()]


def test_a_folder_that_cannot_be_made_is_told_and_the_run_goes_on(tiny, keep):
    keep.folder.parent.parent.mkdir(exist_ok=True)
    keep.folder.parent.write_text("a file")
    assert keep(Counted(tiny, 32), records(30)) == 30
    assert "cannot be kept" in keep.said[0]
