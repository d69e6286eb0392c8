"""Equality with the official E2E scorer.

The expected numbers come from the official scorer, release code unchanged but for the number of
digits that its Perl part prints: predictions and references written to files, one run per case.
"""

import csv
import math
from itertools import groupby, zip_longest
from pathlib import Path

import pytest
import sacrebleu

from dpft.tasks.metrics import coco, e2e
from dpft.tasks.metrics.nist import mteval_tokenize, nist

from .restaurants import PREDICTIONS, REFERENCES

TOLERANCE = 1e-6  # the official scorer prints four decimals


@pytest.mark.slow
def test_hand_written_corpus_scores_as_officially() -> None:
    official = {
        "BLEU": 0.3722084444,
        "NIST": 4.7754113078,
        "METEOR": 0.3732745801,
        "ROUGE_L": 0.4912235041,
        "CIDEr": 2.4792932854,
    }
    scores = e2e.score(PREDICTIONS, REFERENCES)
    assert list(scores) == list(official)
    assert scores == pytest.approx(official, abs=TOLERANCE)


@pytest.fixture(scope="module")
def references(data_root: Path) -> list[list[str]]:
    """The E2E test set: 630 items, references of consecutive equal meaning representations."""
    with (data_root / "e2e" / "testset_w_refs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    grouped = [[row["ref"] for row in item] for _, item in groupby(rows, key=lambda row: row["mr"])]
    assert (len(rows), len(grouped)) == (4693, 630)
    return grouped


@pytest.mark.slow
def test_first_reference_of_the_next_item_scores_as_officially(
    references: list[list[str]],
) -> None:
    first = [item[0] for item in references]
    official = {
        "BLEU": 0.3640568671,
        "NIST": 5.9495541056,
        "METEOR": 0.3339307763,
        "ROUGE_L": 0.4894306058,
        "CIDEr": 1.1012493278,
    }
    scores = e2e.score(first[1:] + first[:1], references)
    assert scores == pytest.approx(official, abs=TOLERANCE)


def test_first_reference_against_the_others_scores_as_officially(
    references: list[list[str]],
) -> None:
    # Without METEOR, whose start alone takes longer than the rest.
    items = [item for item in references if len(item) > 1]
    predictions, others = [item[0] for item in items], [item[1:] for item in items]
    tokens = [mteval_tokenize(text) for text in predictions]
    other_tokens = [[mteval_tokenize(text) for text in item] for item in others]
    assert e2e.bleu(tokens, other_tokens) == pytest.approx(0.6045619084, abs=TOLERANCE)
    assert nist(tokens, other_tokens) == pytest.approx(8.9028890812, abs=TOLERANCE)

    captions = coco.ptb_tokenize(predictions)
    flat = iter(coco.ptb_tokenize([text for item in others for text in item]))
    grouped = [[next(flat) for _ in item] for item in others]
    assert coco.rouge_l(captions, grouped) == pytest.approx(0.6381129069, abs=TOLERANCE)
    assert coco.cider(captions, grouped) == pytest.approx(1.8572240685, abs=TOLERANCE)


def words(*texts: str) -> list[list[str]]:
    return [text.split() for text in texts]


def test_bleu_by_hand() -> None:
    # Matches 5/6, 3/5, 2/4, 1/3: "on" misses, and with it the n-grams across it. Lengths are equal.
    found = e2e.bleu(
        words("the cat sat down on tuesday"), [words("the cat sat down every tuesday")]
    )
    assert found == pytest.approx((5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** (1 / 4))


def test_bleu_takes_the_closest_length_and_of_two_the_shorter() -> None:
    # Lengths 3 and 5 are equally close to 4: the shorter one, so that brevity costs nothing.
    hypothesis = words("a b c d")
    assert e2e.bleu(hypothesis, [words("a b c", "a b c d e")]) == pytest.approx(1.0)
    longer = e2e.bleu(hypothesis, [words("a b c d e")])
    assert longer == pytest.approx(math.exp(1 - 5 / 4))


def test_bleu_smooths_each_order_without_a_match_by_half_of_the_last() -> None:
    # 2/5, then 1/2, 1/4 and 1/8 of a match over 4, 3 and 2 n-grams.
    found = e2e.bleu(words("a x b y z"), [words("a b p q r")])
    assert found == pytest.approx((2 / 5 * 1 / 8 * 1 / 12 * 1 / 16) ** (1 / 4))


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
def test_bleu_of_very_short_texts_is_the_official_one(
    hypotheses: list[list[str]], references: list[list[list[str]]], official: float
) -> None:
    assert e2e.bleu(hypotheses, references) == pytest.approx(official, abs=TOLERANCE)


def test_bleu_is_sacrebleu_s_where_there_are_matches() -> None:
    # Without capitals outside ASCII, which sacrebleu would lowercase and the official scorer not.
    predictions = [text.replace("É", "é") for text in PREDICTIONS]
    references = [[text.replace("É", "é") for text in refs] for refs in REFERENCES]
    streams = list(zip_longest(*references))
    theirs = sacrebleu.corpus_bleu(predictions, streams, lowercase=True).score / 100
    ours = e2e.bleu(
        [mteval_tokenize(text) for text in predictions],
        [[mteval_tokenize(text) for text in refs] for refs in references],
    )
    assert ours == pytest.approx(theirs, abs=1e-12)


def test_an_empty_reference_counts_only_when_it_is_the_first() -> None:
    hypotheses = words("a b c d")
    alone = e2e.bleu(hypotheses, [words("a b c d e f g h i")])
    assert e2e.bleu(hypotheses, [words("a b c d e f g h i", "")]) == alone
    assert e2e.bleu(hypotheses, [words("", "a b c d e f g h i")]) > alone


def test_nothing_predicted_scores_zero_in_bleu() -> None:
    assert e2e.bleu([[], []], [words("a"), words("b")]) == 0.0


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        (["a", "b"], [["a"], []], "item 2 has no references"),
        (["a", "b"], [["a", ""], ["", " "]], "item 2 has only empty references"),
    ],
)
def test_bad_input_is_refused(
    predictions: list[str], references: list[list[str]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        e2e.score(predictions, references)


def test_strings_for_sequences_are_refused() -> None:
    with pytest.raises(TypeError, match=r"pass \[reference\]"):
        e2e.score(["a"], ["a"])
    with pytest.raises(TypeError, match=r"pass \[prediction\]"):
        e2e.score("a", [["a"]])


def test_signature_names_what_decides_the_numbers() -> None:
    for part in ("sacrebleu:", "pycocoevalcap:", "meteor:1.5", "ptb:3.4.1", "tok:13a", "exp"):
        assert part in e2e.SIGNATURE
    assert e2e.signature().startswith(f"{e2e.SIGNATURE}|java:")
