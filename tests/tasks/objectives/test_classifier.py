"""Classification by a head and by infilling: encoding, what is cut, losses and predictions."""

import pytest
import torch

from dpft.config.errors import ConfigError
from dpft.config.schema import Decode
from dpft.tasks.objectives.classifier import Classifier, Infilling
from dpft.tasks.objectives.objective import Instance
from dpft.tasks.objectives.record_types import LabelledText
from tests.tasks.objectives.support import check_losses_are_their_own, standin, wordpiece

CLASSES = ("no", "yes")
ONE, TWO = "<S1> It was [MASK] .", "<S1> ? [MASK] , <S2>"
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


def objective(kind, tokenizer, max_length=30, template=ONE):
    if kind == "head":
        return Classifier(tokenizer, max_length, CLASSES)
    return Infilling(tokenizer, max_length, CLASSES, template, {"no": "terrible", "yes": "great"})


@pytest.fixture(scope="module", params=["bert", "roberta"])
def name(request):
    return request.param


@pytest.fixture(scope="module", params=RECORDS)
def chosen(request, name):
    """Model, objective and records."""
    kind = "masked" if request.param == "infill" else "classifier"
    model, tokenizer = standin(name, kind, CLASSES)
    return model.double(), objective(request.param, tokenizer), RECORDS[request.param]


def test_the_loss_of_a_record_depends_on_no_other_record(chosen):
    check_losses_are_their_own(*chosen)


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
    tokenizer = wordpiece()
    record = LabelledText(("the film was very long", "a b"), 0)
    example, whole = (objective("head", tokenizer, most).encode(record) for most in (9, 30))
    assert tokenizer.decode(list(example.ids)) == "[CLS] the film was very [SEP] a b [SEP]"
    assert (example.length, example.cut_source, whole.cut_source) == (9, whole.length - 9, 0)


LONG = "a b c a b c a b c"


@pytest.mark.parametrize(
    ("kind", "texts", "template", "expected"),
    [
        # The published templates word for word.
        ("bert", ("the film",), ONE, "[CLS] the film it was [MASK] . [SEP]"),
        ("roberta", ("the film ",), ONE, "<s>theĠfilmĠItĠwas<mask>Ġ.</s>"),
        ("roberta", ("who", "the mill"), TWO, "<s>whoĠ?<mask>Ġ,ĠtheĠmill</s>"),
        ("roberta", ("who", "it"), "<S1> [MASK] , <S2>", "<s>who<mask>Ġ,Ġit</s>"),
        ("roberta", ("who",), "<S1> It was[MASK].", "<s>whoĠItĠwas<mask>.</s>"),
        # Of ten tokens. The longest text is cut first, and the blank never.
        ("bert", (LONG,), ONE, "[CLS] a b c a it was [MASK] . [SEP]"),
        ("bert", (LONG, "the film"), TWO, "[CLS] a b c ? [MASK] , the film [SEP]"),
        ("bert", (LONG, LONG), TWO, "[CLS] a b c ? [MASK] , a b [SEP]"),
        ("bert", ("the film", LONG), TWO, "[CLS] the film ? [MASK] , a b c [SEP]"),
    ],
)
def test_templates_are_filled(kind, texts, template, expected):
    tokenizer = wordpiece() if kind == "bert" else standin(kind, "masked")[1]
    size = 10 if kind == "bert" else 30
    example = objective("infill", tokenizer, size, template).encode(LabelledText(texts, 0))
    assert example.ids[example.mask] == tokenizer.mask_token_id
    tokens = tokenizer.convert_ids_to_tokens(list(example.ids))
    assert (" " if kind == "bert" else "").join(tokens) == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("<S1> It was .", r"with 0 \[MASK\]; expected \[MASK\] once"),
        ("<S3> [MASK]", "with unknown <S3>"),
        ("<S1:upper> [MASK]", "with unknown <S1:upper>"),
        ("It was [MASK]", "with 1 .*expected .* once, <S1>"),
    ],
)
def test_impossible_templates_are_refused(template, message):
    with pytest.raises(ConfigError, match=message):
        objective("infill", wordpiece(), template=template)


def test_the_decoder_sees_one_position_of_each_record(name):
    model, tokenizer = standin(name, "masked", CLASSES)
    task = objective("infill", tokenizer)
    shapes = []
    head = model.get_output_embeddings()
    handle = head.register_forward_hook(lambda m, a, out: shapes.append(out.shape))
    batch = task.collate([task.encode(record) for record in RECORDS["infill"]])
    task.losses(model, batch)
    assert shapes == [(4, 1, len(tokenizer))]
    # Nothing is left behind on the model.
    model(batch.tensors["input_ids"])
    handle.remove()
    assert shapes[1] == (*batch.tensors["input_ids"].shape, len(tokenizer))
