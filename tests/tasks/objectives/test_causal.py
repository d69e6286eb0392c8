"""Encoding and losses of causal language models: a record's loss is its own."""

import math

import pytest
import torch
import torch.nn.functional as F

from dpft.config.schema import Decode
from dpft.tasks.dart import DART
from dpft.tasks.dialogues import PersonaChat, SAMSum
from dpft.tasks.e2e import E2E
from dpft.tasks.objectives.generation import Causal, LanguageModel
from dpft.tasks.objectives.objective import Instance
from dpft.tasks.objectives.record_types import TextRecord
from dpft.tasks.own_texts import LanguageModeling
from tests.tasks.objectives.support import Letters, check_losses_are_their_own, prompt_of, spelled


@pytest.fixture(scope="module")
def records():
    return E2E(source="sample").records("train")[:6]


def letters(max_length, **options):
    """An objective whose tokens are letters, and whose end token is ``|``."""
    return Causal(Letters("|"), max_length, **options)


def cut(source, target, max_length, **options):
    example = letters(max_length, **options).encode(TextRecord((source,), target))
    assert example.length <= max_length
    return spelled(example.prompt), spelled(example.target)


@pytest.mark.parametrize(
    ("options", "source", "target"),
    [
        ({}, "Q: ", " yes|"),  # the end token stands between
        ({"after": " A: "}, "Q", "yes|"),
        ({"after": " A:"}, "Q ", " yes|"),
        ({"ends": False}, "Q: ", "yes|"),
        ({"ends": False}, "Q:", " yes|"),
        ({"ends": False, "before": "Q: "}, "", "yes|"),
    ],
)
def test_the_target_begins_with_a_space_unless_one_stands_before_it(options, source, target):
    assert cut(source, "yes", 50, **options)[1] == target


def test_long_records_lose_the_end_of_the_target_but_never_all_of_it():
    assert cut("abcd", "x" * 9, 8) == ("abcd|", " xx")
    assert cut("abcdefgh", "x" * 9, 8) == ("cdefgh|", " ")


def test_long_dialogues_lose_their_start_but_neither_instruction_nor_delimiter():
    options = {"cut": "source", "before": "I:", "after": ">", "ends": False}
    assert cut("abcdefgh", "xy", 10, **options) == ("I:fgh>", " xy|")
    assert cut("abcdefgh", "x" * 20, 10, **options) == ("I:>", " xxxxxx")
    objective = letters(10, positions=10, **options)
    assert spelled(prompt_of(objective, TextRecord(("abcdefgh",), ""), room=4)) == "I:fgh>"


def test_a_source_that_training_shows_whole_is_whole_when_it_is_asked():
    """Only what the model's positions cannot hold is cut for what is still to be written."""
    record = TextRecord(("abcdefgh",), "xy")  # 9 and 4 tokens

    def asked(positions, room, size=13, **options):
        objective = letters(size, cut="source", positions=positions, **options)
        return spelled(prompt_of(objective, record, room))

    assert letters(13, cut="source").encode(record).cut_source == 0
    for room in (1, 4, 100):
        for positions in (None, 113):
            assert asked(positions, room) == "abcdefgh|"
    assert asked(20, 11) == "abcdefgh|"  # 9 + 11
    assert asked(20, 12) == "bcdefgh|"
    assert asked(20, 100) == "cdefgh|"  # half of max_length stays
    # What is longer than training shows is cut as there, before the shortest target.
    assert asked(113, 100, size=9) == "bcdefgh|"


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_equal_the_plain_computation_record_by_record(tiny, records, reduction):
    """Batching, left padding and keeping only the last logits change nothing."""
    objective = Causal(tiny.tokenizer, 100, reduction)
    examples = [objective.encode(record) for record in records]
    assert len({e.length for e in examples}) > 2
    model = tiny.model.eval()
    with torch.no_grad():
        losses = objective.losses(model, objective.collate(examples))
        for example, loss in zip(examples, losses, strict=True):
            ids = torch.tensor([example.prompt + example.target])
            logits = model(ids).logits[0, len(example.prompt) - 1 : -1]
            plain = F.cross_entropy(logits, torch.tensor(example.target), reduction=reduction)
            torch.testing.assert_close(loss, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", [E2E, DART, PersonaChat, SAMSum, LanguageModeling])
def test_the_loss_of_a_record_depends_on_no_other_record(tiny, task):
    sample = task(source="sample", max_length=80)
    records = sorted(sample.records("train")[:60], key=lambda r: len(r.source + r.target))[::10]
    check_losses_are_their_own(tiny.model.eval(), sample.objective(tiny), records)


@pytest.mark.parametrize(
    ("text", "target"), [("ab", "ab|"), ("abcd", "abcd|"), ("abcde", "abcde"), ("abcdefg", "abcde")]
)
def test_a_whole_text_follows_the_end_token_and_is_cut(text, target):
    example = LanguageModel(Letters("|"), 6).encode(TextRecord((), text))
    assert (spelled(example.prompt), spelled(example.target)) == ("|", target)


@pytest.mark.parametrize("whole", [False, True])
def test_likelihoods_count_every_target_token_once(tiny, whole, monkeypatch):
    """In batches they are those of one record at a time, the end token included."""
    objective = Causal(tiny.tokenizer, 100, perplexity=True)
    instances = E2E(source="sample", limit_eval=5).instances("test")
    if whole:
        objective = LanguageModel(tiny.tokenizer, 40)
        instances = [Instance(TextRecord((), x), (x,)) for x in ("A kettle.", "Why?", "It is " * 9)]
        monkeypatch.setattr("dpft.tasks.objectives.generation.decode", pytest.fail)
    settings, done = Decode(beams=1, max_new_tokens=1, batch_size=2), []
    predictions = objective.predict(tiny.model, instances, settings, 0, done.append)
    assert sum(done) == len(instances)
    for instance, prediction in zip(instances, predictions, strict=True):
        example = objective.encode(TextRecord(instance.record.segments, instance.references[0]))
        ids = torch.tensor([example.prompt + example.target])
        with torch.no_grad():
            logits = tiny.model.eval()(ids).logits[0, len(example.prompt) - 1 : -1]
        plain = F.cross_entropy(logits, torch.tensor(example.target), reduction="sum").item()
        assert math.isclose(prediction.nll, plain, rel_tol=1e-4)
        assert prediction.tokens == len(example.target)
