"""Infilling: templates, words, the blank that is never cut, and losses at the blank alone."""

import pytest

from dpft.config.errors import ConfigError
from dpft.tasks.objectives.classifier import Infilling
from dpft.tasks.objectives.records import LabelledText
from tests.tasks.objectives.encoders import TOKENIZERS, build

NAMES = ("bert", "roberta")
CLASSES = ("negative", "positive")
ONE, TWO = "<S1> It was [MASK] .", "<S1> ? [MASK] , <S2>"
RECORDS = [
    LabelledText(("the film was very long",), 0),
    LabelledText(("not dull",), 1),
    LabelledText(("it is a very very long plot , the film is not good .",), 0),
    LabelledText(("a b c",), 1),
]
WORDS = {"negative": "terrible", "positive": "great"}


def infilling(tokenizer, template=ONE, words=WORDS, max_length=30):
    return Infilling(tokenizer, max_length, CLASSES, template, words)


def spelled(name, texts, template, max_length=30):
    tokenizer = TOKENIZERS[name]()
    task = infilling(tokenizer, template, max_length=max_length)
    example = task.encode(LabelledText(texts, 0))
    assert example.length <= max_length
    assert example.ids[example.mask] == tokenizer.mask_token_id
    tokens = tokenizer.convert_ids_to_tokens(list(example.ids))
    return " ".join(tokens) if name == "bert" else "".join(tokens)


@pytest.fixture(scope="module", params=NAMES)
def encoder(request):
    return build(request.param, masked=True)


def test_the_published_templates_word_for_word():
    assert spelled("bert", ("the film",), ONE) == "[CLS] the film it was [MASK] . [SEP]"
    assert spelled("roberta", ("the film ",), ONE) == "<s>theĠfilmĠItĠwas<mask>Ġ.</s>"
    assert spelled("roberta", ("who", "the mill"), TWO) == "<s>whoĠ?<mask>Ġ,ĠtheĠmill</s>"
    assert spelled("roberta", ("who", "it"), "<S1> [MASK] , <S2>") == "<s>who<mask>Ġ,Ġit</s>"
    assert spelled("roberta", ("who",), "<S1> It was[MASK].") == "<s>whoĠItĠwas<mask>.</s>"


def test_long_texts_are_cut_longest_first_and_the_blank_never():
    long = "a b c a b c a b c"
    assert spelled("bert", (long,), ONE, 10) == "[CLS] a b c a it was [MASK] . [SEP]"
    assert spelled("bert", (long, "the film"), TWO, 10) == ("[CLS] a b c ? [MASK] , the film [SEP]")
    assert spelled("bert", (long, long), TWO, 10) == "[CLS] a b c ? [MASK] , a b [SEP]"
    assert spelled("bert", ("the film", long), TWO, 10) == ("[CLS] the film ? [MASK] , a b c [SEP]")


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
        infilling(TOKENIZERS["bert"](), template)


def test_the_decoder_sees_one_position_of_each_record(encoder):
    model, tokenizer = encoder
    task = infilling(tokenizer)
    shapes = []
    head = model.get_output_embeddings()
    handle = head.register_forward_hook(lambda m, a, out: shapes.append(out.shape))
    batch = task.collate([task.encode(record) for record in RECORDS])
    task.losses(model, batch)
    assert shapes == [(4, 1, len(tokenizer))]
    # Nothing is left behind on the model.
    model(batch.tensors["input_ids"])
    handle.remove()
    assert shapes[1] == (*batch.tensors["input_ids"].shape, len(tokenizer))
