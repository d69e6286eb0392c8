"""Tokens and NIST of the `mteval` script. Expected scores are worked out by hand."""

import math

import pytest

from dpft.tasks.metrics.nist import mteval_tokenize, nist


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
def test_tokens_are_those_of_mteval(text: str, tokens: list[str]) -> None:
    assert mteval_tokenize(text) == tokens


def test_a_copy_scores_the_information_of_its_words() -> None:
    # Four different words: log2(4) for each unigram, log2(1/1) = 0 for each longer n-gram.
    words = ["a", "b", "c", "d"]
    assert nist([words], [[words]]) == pytest.approx(2.0)


def test_information_counts_words_over_all_references() -> None:
    # Six reference words; "a" twice, "x" and others once. Hypothesis "a x" meets a (log2 6/2),
    # x (log2 6/1) and the pair "a x" (log2 2/1). Mean reference length 3: ratio 2/3, penalty 0.5.
    hypotheses, references = [["a", "x"]], [[["a", "x", "y"], ["z", "a", "w"]]]
    unigrams = (math.log2(6 / 2) + math.log2(6)) / 2
    bigrams = math.log2(2) / 1
    assert nist(hypotheses, references) == pytest.approx(0.5 * (unigrams + bigrams))


def test_matches_are_clipped_by_the_largest_count_in_one_reference() -> None:
    # "a" counts twice (as in the second reference), not three times (as in both together).
    hypotheses, references = [["a", "a", "a", "a"]], [[["a", "b", "c", "d"], ["a", "a", "e", "f"]]]
    unigrams = 2 * math.log2(8 / 3) / 4
    bigrams = math.log2(3 / 1) / 3  # "a a" is in the second reference once; its prefix counts 3
    assert nist(hypotheses, references) == pytest.approx(unigrams + bigrams)


def test_an_empty_reference_is_no_reference() -> None:
    hypotheses = [["a", "b"], ["c"]]
    references = [[["a", "b"], []], [["c", "d"]]]
    without = [[["a", "b"]], [["c", "d"]]]
    assert nist(hypotheses, references) == nist(hypotheses, without)


def test_a_prefix_that_is_the_word_zero_counts_all_words() -> None:
    # The quirk of the official script: log2(4 words / 1), where other words give log2(1 / 1).
    hypothesis = ["0", "b", "c", "d"]
    assert nist([hypothesis], [[hypothesis]]) == pytest.approx(2.0 + math.log2(4) / 3)


def test_empty_hypotheses_score_zero() -> None:
    assert nist([[], []], [[["a"]], [["b"]]]) == 0.0


def test_references_without_a_word_are_refused() -> None:
    with pytest.raises(ValueError, match="only empty references"):
        nist([["a"]], [[[]]])
