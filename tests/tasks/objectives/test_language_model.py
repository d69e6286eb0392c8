"""Language modelling: every token once, nothing decoded, no record in another's loss."""

import math

import pytest
import torch
import torch.nn.functional as F

from dpft.config.schema import Decode
from dpft.tasks.objectives.base import Instance
from dpft.tasks.objectives.causal import LanguageModel
from dpft.tasks.objectives.records import TextRecord
from tests.tasks.objectives.letters import letters_with, spelled

TEXTS = [
    "A kettle.",
    "The radio rattles, and nobody knows why it does.",
    "One more clock is stuck.",
]


@pytest.fixture(scope="module")
def objective(tiny):
    return LanguageModel(tiny.tokenizer, 40)


def letters(max_length):
    return LanguageModel(letters_with("|"), max_length)


@pytest.mark.parametrize(
    ("text", "target"), [("ab", "ab|"), ("abcd", "abcd|"), ("abcde", "abcde"), ("abcdefg", "abcde")]
)
def test_a_text_follows_the_end_token_and_is_cut(text, target):
    example = letters(6).encode(TextRecord((), text))
    assert (spelled(example.prompt), spelled(example.target)) == ("|", target)
    assert example.length <= 6


def plain_nll(tiny, example):
    """Of one text alone, by the model's own forward."""
    ids = torch.tensor([example.prompt + example.target])
    with torch.no_grad():
        logits = tiny.model.eval()(ids).logits[0, :-1]
    return F.cross_entropy(logits, ids[0, 1:], reduction="none")


def test_predictions_are_likelihoods_and_no_texts(tiny, objective, monkeypatch):
    monkeypatch.setattr(
        "dpft.tasks.objectives.causal.decode", lambda *args: pytest.fail("nothing is to be decoded")
    )
    instances = [Instance(TextRecord((), text), (text,)) for text in TEXTS]
    done = []
    predictions = objective.predict(tiny.model, instances, Decode(batch_size=2), 0, done.append)
    assert sum(done) == len(TEXTS)
    for text, prediction in zip(TEXTS, predictions, strict=True):
        example = objective.encode(TextRecord((), text))
        assert (prediction.source, prediction.prediction) == ("", "")
        assert prediction.references == (text,)
        assert prediction.tokens == len(example.target)
        assert math.isclose(prediction.nll, plain_nll(tiny, example).sum().item(), rel_tol=1e-4)
