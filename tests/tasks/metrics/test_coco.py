"""The COCO scorers: PTB tokens, and ROUGE-L and CIDEr on cases that a reader can check."""

import pytest

from dpft.tasks.metrics import coco


@pytest.fixture(scope="module")
def tokens() -> dict[str, str]:
    """One run of the tokenizer for all texts."""
    texts = ["", "It's CHEAP: £20-25 (approx.), isn't it?", "  ", "Café\nÉtoile\u2028bar"]
    texts += ["?", "?!", "a ||| b", 'He said "hi" & left -- U.S.', ""]
    return dict(zip(texts, coco.ptb_tokenize(texts), strict=True))


def test_tokens_are_lowercase_without_the_listed_punctuation(tokens: dict[str, str]) -> None:
    found = tokens["It's CHEAP: £20-25 (approx.), isn't it?"]
    assert found == "it 's cheap # 20-25 -lrb- approx -rrb- is n't it"
    assert tokens["?!"] == "?!"
    assert tokens["a ||| b"] == "a | | | b"
    assert tokens['He said "hi" & left -- U.S.'] == "he said hi & left u.s."


def test_tokens_do_not_depend_on_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("LANG", "tr_TR")
    assert coco.ptb_tokenize(["CAFÉ TITANIC"]) == ["café titanic"]


def test_rouge_l_takes_precision_and_recall_from_different_references() -> None:
    # Against "a b c d e f": P = 1, R = 1/2. Against "a x": P = 1/3, R = 1/2. Against "c": P = 1/3,
    # R = 1. So P = 1 and R = 1, and F = 1, though no reference equals the prediction.
    assert coco.rouge_l(["a b c"], [["a b c d e f", "a x", "c"]]) == pytest.approx(1.0)


def test_cider_of_copies_without_shared_words_is_ten_per_order_met() -> None:
    # Two words each: the unigrams and the bigram match fully, there are no longer n-grams.
    assert coco.cider(["a b", "c d"], [["a b"], ["c d"]]) == pytest.approx(10 * 2 / 4)
