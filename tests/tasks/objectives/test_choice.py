"""Classification by a head and by infilling: losses and predictions of both."""

import pytest
import torch

from dpft.config.schema import Decode
from dpft.tasks.objectives.base import Instance
from dpft.tasks.objectives.classifier import Classifier, Infilling
from dpft.tasks.objectives.records import LabelledText
from tests.tasks.objectives.encoders import build
from tests.tasks.objectives.own_losses import check_losses_are_their_own

CLASSES = ("no", "yes")
RECORDS = {
    "head": [
        LabelledText(("who built the mill ?", "the bridge"), 1),
        LabelledText(("is it good", "it is not very good , it is dull ."), 0),
        LabelledText(("a", "b"), 1),
        LabelledText(("the film was long", "the plot was not"), 0),
    ],
    "infill": [
        LabelledText(("the film was very long",), 0),
        LabelledText(("not dull",), 1),
        LabelledText(("it is a very very long plot , the film is not good .",), 0),
        LabelledText(("a b c",), 1),
    ],
}


def objective(kind, tokenizer, max_length=30):
    if kind == "head":
        return Classifier(tokenizer, max_length, CLASSES)
    words = {"no": "terrible", "yes": "great"}
    return Infilling(tokenizer, max_length, CLASSES, "<S1> It was [MASK] .", words)


@pytest.fixture(scope="module", params=["bert", "roberta"])
def name(request):
    return request.param


@pytest.fixture(scope="module", params=RECORDS)
def chosen(request, name):
    """Model, objective and records."""
    model, tokenizer = build(name, masked=request.param == "infill")
    return model, objective(request.param, tokenizer), RECORDS[request.param]


def test_the_loss_of_a_record_depends_on_no_other_record(chosen):
    check_losses_are_their_own(*chosen)


def test_a_loss_is_weighted_by_the_constant_of_its_class(name):
    model, tokenizer = build(name, masked=False)
    plain, records = objective("head", tokenizer), RECORDS["head"]
    weighted = Classifier(tokenizer, 30, CLASSES, weights=(0.5, 3.0))
    losses = []
    for one in (plain, weighted):
        batch = one.collate([one.encode(record) for record in records])
        losses.append(one.losses(model, batch))
    assert torch.equal(losses[1], losses[0] * torch.tensor([3.0, 0.5, 3.0, 0.5]))
    check_losses_are_their_own(model, weighted, records)


def test_predictions_name_the_class_and_its_likelihood_in_order(chosen):
    model, task, records = chosen
    done = []
    instances = [Instance(r, (CLASSES[r.label],), f"part{i}") for i, r in enumerate(records)]
    predictions = task.predict(model, instances, Decode(batch_size=3), 0, done.append)
    assert model.training
    assert done == [3, 1]
    for record, instance, prediction in zip(records, instances, predictions, strict=True):
        with torch.no_grad():
            (scores,) = task.scores(model, task.collate([task.encode(record)]))
        assert prediction.prediction == CLASSES[int(scores.argmax())]
        assert prediction.references == instance.references
        assert prediction.subset == instance.subset
        assert prediction.source == "\n".join(record.texts)
        assert prediction.nll == pytest.approx(-scores.log_softmax(0)[record.label].item())
        assert prediction.tokens == 1


def test_of_two_texts_the_longer_is_cut():
    _, tokenizer = build("bert", masked=False)
    record = LabelledText(("the film was very long", "a b"), 0)
    example, whole = (objective("head", tokenizer, most).encode(record) for most in (9, 30))
    assert tokenizer.decode(list(example.ids)) == "[CLS] the film was very [SEP] a b [SEP]"
    assert (example.length, example.cut_source, whole.cut_source) == (9, whole.length - 9, 0)
