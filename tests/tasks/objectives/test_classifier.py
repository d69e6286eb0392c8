"""Classification with a head: what is encoded, and that a record's loss is its own."""

import pytest

from dpft.config.errors import ConfigError
from dpft.tasks.objectives.classifier import Classifier, check_positions
from dpft.tasks.objectives.records import LabelledText
from tests.tasks.objectives.encoders import build

NAMES = ("bert", "roberta")
PAIRS = [
    LabelledText(("who built the mill ?", "the bridge"), 1),
    LabelledText(("is it good", "it is not very good , it is dull ."), 0),
    LabelledText(("a", "b"), 1),
    LabelledText(("the film was long", "the plot was not"), 0),
]


@pytest.fixture(scope="module", params=NAMES)
def encoder(request):
    return build(request.param, masked=False)


def objective(tokenizer, max_length=30):
    return Classifier(tokenizer, max_length, ("no", "yes"))


def test_pairs_are_encoded_with_the_tokenizers_own_special_tokens():
    _, tokenizer = build("bert", masked=False)
    example = objective(tokenizer).encode(LabelledText(("a b", "c"), 1))
    tokens = tokenizer.convert_ids_to_tokens(list(example.ids))
    assert tokens == ["[CLS]", "a", "b", "[SEP]", "c", "[SEP]"]
    assert example.types == (0, 0, 0, 0, 1, 1)
    assert example.label == 1
    _, tokenizer = build("roberta", masked=False)
    example = objective(tokenizer).encode(LabelledText(("the film",), 0))
    assert tokenizer.convert_ids_to_tokens(list(example.ids))[0] == "<s>"
    assert example.types is None


def test_of_two_texts_the_longer_is_cut():
    _, tokenizer = build("bert", masked=False)
    record = LabelledText(("the film was very long", "a b"), 0)
    example, whole = (objective(tokenizer, most).encode(record) for most in (9, 30))
    assert tokenizer.decode(list(example.ids)) == "[CLS] the film was very [SEP] a b [SEP]"
    assert example.length == 9
    assert (example.cut_source, whole.cut_source) == (whole.length - 9, 0)
    assert whole.length > 9


def test_padding_is_on_the_right_with_the_tokenizers_own_token():
    _, tokenizer = build("roberta", masked=False)
    task = objective(tokenizer)
    batch = task.collate([task.encode(record) for record in PAIRS])
    ids, mask = batch.tensors["input_ids"], batch.tensors["attention_mask"]
    assert set(batch.tensors) == {"input_ids", "attention_mask", "labels"}
    assert (ids[mask == 0] == tokenizer.pad_token_id).all()
    assert (mask.diff(dim=1) <= 0).all()
    assert mask.sum(1).tolist() == [task.encode(record).length for record in PAIRS]


def test_records_longer_than_the_models_positions_are_refused(encoder):
    model, _ = encoder
    check_positions(model, 40)  # RoBERTa has 42, of which padding takes two
    with pytest.raises(ConfigError, match=r"task.max_length is 41, .* type task.max_length=40"):
        check_positions(model, 41)


def test_no_room_for_a_text_is_an_error():
    _, tokenizer = build("bert", masked=False)
    with pytest.raises(ConfigError, match=r"task\.max_length is 4, .* 5 or more"):
        objective(tokenizer, 4).encode(PAIRS[1])
