"""Scores that need no other program: accuracy, F1, perplexity, BLEU, ROUGE, ParlAI's F1.

The libraries behind BLEU and ROUGE are imported when they are used.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from itertools import zip_longest
from typing import Any

# What decides each number, for a run record.
CLASSES = "accuracy:share of equal names|f1:2TP/(2TP+FP+FN), 0 where undefined"
PERPLEXITY = "token_perplexity:end token counted|over all tokens, not a mean over examples"
BLEU = f"bleu:case:mixed|tok:13a|smooth:exp|sacrebleu:{version('sacrebleu')}"
ROUGE = f"rouge:F1|stemmer:porter|mean over examples|rouge_score:{version('rouge_score')}"
PARLAI = "f1:parlai|case:lower|punctuation:space|articles:space|labels:max"

ROUGES = {"rouge1": "ROUGE_1", "rouge2": "ROUGE_2", "rougeL": "ROUGE_L"}
"""The library's measures, by our names."""
_PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]")
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def check_counts(predictions: Sequence[str], references: Sequence[Any]) -> None:
    """Raise ValueError for no predictions, or another number of them than of items."""
    if not predictions or len(predictions) != len(references):
        raise ValueError(
            f"got {len(predictions)} predictions and references for {len(references)} items; "
            "expected one or more, and as many of one as of the other"
        )


def check_texts(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Raise ValueError for what the official scorers of E2E and DART cannot score."""
    check_counts(predictions, references)
    for i, refs in enumerate(references, 1):
        if not any(ref.strip() for ref in refs):  # official scorers divide by zero here
            got = "only empty references" if refs else "no references"
            raise ValueError(f"item {i} has {got}, expected one with words; leave it out")


def accuracy(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of predictions that are right, in [0, 1]; papers print it times 100."""
    check_counts(predictions, references)
    return sum(p == r for p, r in zip(predictions, references, strict=True)) / len(predictions)


def class_f1(predictions: Sequence[str], references: Sequence[str], positive: str) -> float:
    """Return the harmonic mean of precision and recall of the class ``positive``, in [0, 1].

    Equals scikit-learn's ``f1_score(average="binary", zero_division=0)``, which GLUE's own
    evaluation calls.
    """
    check_counts(predictions, references)
    pairs = list(zip(predictions, references, strict=True))
    hits = sum(p == r == positive for p, r in pairs)
    mentions = sum((p == positive) + (r == positive) for p, r in pairs)
    return 2 * hits / mentions if mentions else 0.0


def macro_f1(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Return the mean of `class_f1` over all classes that occur, in [0, 1].

    Equals scikit-learn's ``f1_score(average="macro", zero_division=0)``.
    """
    names = {*predictions, *references}
    return sum(class_f1(predictions, references, name) for name in names) / len(names)


def token_perplexity(nlls: Sequence[float | None], tokens: Sequence[int | None]) -> float | None:
    """Return ``exp(total negative log-likelihood / number of tokens)``, end tokens included.

    Long references weigh more than short ones. A tokenizer that cuts words finer gives another
    number for the same model quality: compare models of one tokenizer only.

    Returns:
        The perplexity, 1 or more; None if a likelihood is missing, as in predictions of another
        program, or if the number is not finite, as that of a diverged model.
    """
    if None in nlls or None in tokens:
        return None
    if (total := sum(count for count in tokens if count)) < 1:
        raise ValueError(f"got {total} tokens; expected one or more")
    try:
        perplexity = math.exp(sum(nll for nll in nlls if nll) / total)
    except OverflowError:
        return None
    return perplexity if math.isfinite(perplexity) else None


def bleu(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False
) -> float:
    """Return BLEU-4 in [0, 100] over all texts together, with sacrebleu's own tokenisation."""
    import sacrebleu

    check_counts(predictions, references)
    streams = list(zip_longest(*references))  # padded with None
    # force: no warning about a text that looks tokenised.
    counted = sacrebleu.corpus_bleu(predictions, streams, lowercase=lowercase, force=True)
    return float(counted.score)


def rouge(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return mean F1 in [0, 100] of three measures, stemmed, the best of several references.

    Texts are passed as they are: rouge-score lowercases, and words are runs of ASCII letters and
    digits. This is not the pipeline of DART, which tokenises first and jackknifes.
    """
    from rouge_score.rouge_scorer import RougeScorer

    check_counts(predictions, references)
    scorer = RougeScorer(list(ROUGES), use_stemmer=True)
    sums = dict.fromkeys(ROUGES, 0.0)
    for prediction, texts in zip(predictions, references, strict=True):
        for name, measure in scorer.score_multi(texts, prediction).items():
            sums[name] += measure.fmeasure
    return {ROUGES[name]: 100 * total / len(predictions) for name, total in sums.items()}


def parlai_f1(predictions: Sequence[str], labels: Sequence[Sequence[str]]) -> float:
    """Return the mean of ParlAI's word F1, the score of ConvAI2, in [0, 1].

    Each prediction is compared with the label that it is most like; 0 where no word is shared.
    """
    check_counts(predictions, labels)
    scores = [
        max(_word_f1(Counter(parlai_words(text)), Counter(parlai_words(label))) for label in given)
        for text, given in zip(predictions, labels, strict=True)
    ]
    return sum(scores) / len(scores)


def parlai_words(text: str) -> list[str]:
    """Return lowercase words without punctuation and articles, each of which becomes a space.

    "well-known" is two words, and "I'm" is "i" and "m". The order of the steps matters: articles
    are removed after punctuation is gone.
    """
    return _ARTICLES.sub(" ", _PUNCTUATION.sub(" ", text.lower())).split()


def _word_f1(predicted: Counter[str], label: Counter[str]) -> float:
    shared = (predicted & label).total()
    if not shared:
        return 0.0
    precision, recall = shared / predicted.total(), shared / label.total()
    return 2 * precision * recall / (precision + recall)
