"""What no metric scores: nothing, and predictions without as many items to score them by."""

import pytest

from dpft.tasks.metrics import bleu, classification, e2e, gem, parlai, rouge

SCORES = [
    *(e2e.score, gem.score, bleu.score, rouge.score, parlai.corpus_f1, classification.accuracy),
    lambda predictions, references: classification.f1(predictions, references, "a"),
]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("predictions", "references"), [([], []), (["a"], [["a"], ["b"]])])
def test_unequal_or_empty_lists_are_refused(score, predictions, references):
    got = f"got {len(predictions)} predictions and references for {len(references)} items"
    with pytest.raises(ValueError, match=got):
        score(predictions, references)
