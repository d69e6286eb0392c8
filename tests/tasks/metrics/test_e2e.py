"""Equality with the official E2E scorer, and a Java that misbehaves.

The expected numbers come from the official scorer, release code unchanged but for the number of
digits that its Perl part prints: predictions and references written to files, one run per case.
"""

import csv
from itertools import groupby

import pytest

from dpft.tasks.metrics import coco, e2e_scores
from dpft.tasks.metrics.coco import JavaError
from dpft.tasks.metrics.e2e_scores import bleu, mteval_tokenize, nist
from tests.tasks.metrics.restaurants import PREDICTIONS, REFERENCES

TOLERANCE = 1e-6  # the official scorer prints four decimals

OFFICIAL = {"BLEU": 0.3722084444, "NIST": 4.7754113078, "METEOR": 0.3732745801}
OFFICIAL |= {"ROUGE_L": 0.4912235041, "CIDEr": 2.4792932854}


@pytest.mark.slow
def test_hand_written_corpus_scores_as_officially():
    scores = e2e_scores.score(PREDICTIONS, REFERENCES)
    assert list(scores) == list(OFFICIAL)
    assert scores == pytest.approx(OFFICIAL, abs=TOLERANCE)


def test_bleu_and_nist_of_the_corpus_are_the_official_ones():
    predictions = [mteval_tokenize(text) for text in PREDICTIONS]
    references = [[mteval_tokenize(text) for text in texts] for texts in REFERENCES]
    assert bleu(predictions, references) == pytest.approx(OFFICIAL["BLEU"], abs=TOLERANCE)
    assert nist(predictions, references) == pytest.approx(OFFICIAL["NIST"], abs=TOLERANCE)


@pytest.fixture(scope="module")
def references(data_root):
    """The E2E test set: 630 items, references of consecutive equal meaning representations."""
    with (data_root / "e2e" / "testset_w_refs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    grouped = [[row["ref"] for row in item] for _, item in groupby(rows, key=lambda row: row["mr"])]
    assert (len(rows), len(grouped)) == (4693, 630)
    return grouped


def test_first_reference_against_the_others_scores_as_officially(references):
    # Without METEOR, whose start alone takes longer than the rest.
    items = [item for item in references if len(item) > 1]
    predictions, others = [item[0] for item in items], [item[1:] for item in items]
    tokens = [mteval_tokenize(text) for text in predictions]
    other_tokens = [[mteval_tokenize(text) for text in item] for item in others]
    assert bleu(tokens, other_tokens) == pytest.approx(0.6045619084, abs=TOLERANCE)
    assert nist(tokens, other_tokens) == pytest.approx(8.9028890812, abs=TOLERANCE)

    captions = coco.ptb_tokenize(predictions)
    flat = iter(coco.ptb_tokenize([text for item in others for text in item]))
    grouped = [[next(flat) for _ in item] for item in others]
    assert coco.rouge_l(captions, grouped) == pytest.approx(0.6381129069, abs=TOLERANCE)
    assert coco.cider(captions, grouped) == pytest.approx(1.8572240685, abs=TOLERANCE)


def words(*texts):
    return [text.split() for text in texts]


# From the official scorer. sacrebleu gives 0 for the first three.
@pytest.mark.parametrize(
    ("hypotheses", "references", "official"),
    [
        (words("the cat"), [words("the cat sat", "a cat")], 1.0),
        (words("a b", "c d"), [words("a b c d e", "a b"), words("c d e f")], 0.6065306597),
        (words("nothing alike", "zzz"), [words("a b"), words("c", "d e f")], 0.4518010018),
        (
            words("a", "", "b c"),
            [words("x"), words("y", "y z w"), words("b c", "b d")],
            0.6474591279,
        ),
    ],
)
def test_bleu_of_very_short_texts_is_the_official_one(hypotheses, references, official):
    assert bleu(hypotheses, references) == pytest.approx(official, abs=TOLERANCE)


def test_an_empty_reference_counts_only_when_it_is_the_first():
    hypotheses = words("a b c d")
    alone = bleu(hypotheses, [words("a b c d e f g h i")])
    assert bleu(hypotheses, [words("a b c d e f g h i", "")]) == alone
    assert bleu(hypotheses, [words("", "a b c d e f g h i")]) > alone


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The Mill, a pub.", ["the", "mill", ",", "a", "pub", "."]),
        ("CAFÉ ÀÉ Café", ["cafÉ", "ÀÉ", "café"]),
        ("4.5 of 1,200; £20-25.", ["4.5", "of", "1,200", ";", "£20", "-", "25", "."]),
        ("well-known Nell's", ["well-known", "nell's"]),
        ("&quot;x&quot; &amp; &lt;y&gt;", ['"', "x", '"', "&", "<", "y", ">"]),
        ("&AMP;", ["&", "amp", ";"]),
        ("(a)[b]/c", ["(", "a", ")", "[", "b", "]", "/", "c"]),
        ("well-\nknown\r\n", ["well-", "known"]),
        ("a\u00a0b <skipped> c", ["a", "b", "c"]),
        ("", []),
        (" \t ", []),
    ],
)
def test_tokens_are_those_of_mteval(text, tokens):
    assert mteval_tokenize(text) == tokens


def test_empty_hypotheses_score_zero():
    assert nist([[], []], [[["a"]], [["b"]]]) == bleu([[], []], [[["a"]], [["b"]]]) == 0.0


PTB = {
    "": "",
    "Café\nÉtoile\u2028bar": "café étoile bar",
    "It's CHEAP: £20-25 (approx.), isn't it?": "it 's cheap # 20-25 -lrb- approx -rrb- is n't it",
    "?!": "?!",
    "a ||| b": "a | | | b",
    'He said "hi" & left -- U.S.': "he said hi & left u.s.",
    "CAFÉ TITANIC": "café titanic",
}


@pytest.mark.slow
def test_ptb_tokens_are_lowercase_without_the_listed_punctuation_in_any_locale(monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("LANG", "tr_TR")
    assert dict(zip(PTB, coco.ptb_tokenize([*PTB]), strict=True)) == PTB


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ("echo out of luck >&2; exit 3", r"(?s)status 3.*out of luck"),
        ("exec sleep 60", "within 0 s"),
    ],
)
def test_a_program_that_fails_or_hangs_is_ended_and_quoted(
    tmp_path, monkeypatch, commands, message
):
    file = tmp_path / "java"
    file.write_text(f"#!/bin/sh\n{commands}\n")
    file.chmod(0o700)
    monkeypatch.setattr(coco, "find_java", lambda: file)
    with pytest.raises(JavaError, match=message):
        coco.run_java(["-jar", "x.jar"], ["text"], timeout_s=0.2)
