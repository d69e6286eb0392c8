"""The scores of DART as the GEM benchmark's `gem-metrics` computes them.

Nothing is cleaned: BLEU and METEOR read the texts as they are. ROUGE reads words of NLTK, and
several references are jackknifed. BERTScore and BLEURT need weights, and are None without them.
`docs/reference/metrics.md` says how each was checked against `gem-metrics`.

Source: Gehrmann et al., 2021, "The GEM Benchmark: Natural Language Generation, its Evaluation and
Metrics".
"""

from collections.abc import Sequence
from importlib.metadata import version

from nltk.tokenize import word_tokenize
from rouge_score.rouge_scorer import RougeScorer

from dpft.tasks.metrics import coco, java
from dpft.tasks.metrics.scorers import ROUGES, bleu, check_texts

SIGNATURE = (
    f"bleu:nrefs:var|case:lc|eff:no|tok:13a|smooth:exp|sacrebleu:{version('sacrebleu')}"
    f"+meteor:{coco.METEOR_VERSION}|norm|raw text|pycocoevalcap:{version('pycocoevalcap')}"
    f"+rouge:F1|stemmer:porter|tok:treebank, whole text|nltk:{version('nltk')}"
    f"|refs:jackknife|mean over items|rouge_score:{version('rouge_score')}"
)
"""What decides the numbers that need no weights; `signature` adds Java and the weights in use."""


def signature(bertscore: str | None = None, bleurt: str | None = None) -> str:
    """Return `SIGNATURE`, the Java in use, and which weights were used or why none were."""
    from dpft.tasks.metrics import neural

    return (
        f"{SIGNATURE}|java:{java.java_version()}"
        f"+bertscore:{neural.load_bertscore(bertscore).signature}"
        f"+bleurt:{neural.load_bleurt(bleurt).signature}"
    )


def score(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    bertscore: str | None = None,
    bleurt: str | None = None,
) -> dict[str, float | None]:
    """Return the scores of a corpus on the scales that papers print for DART.

    BLEU and ROUGE are in [0, 100], the others in [0, 1]; but BLEURT may be negative. BERTScore and
    BLEURT are None where they cannot be computed; `signature` says why.
    """
    from dpft.tasks.metrics import neural

    check_texts(predictions, references)
    kept = [[ref for ref in refs if ref.strip()] for refs in references]
    return {
        # Every letter is lowercased, where E2E's scorer lowercases A to Z only.
        "BLEU": bleu(predictions, kept, lowercase=True),
        "METEOR": coco.meteor(predictions, kept),
        **rouge(predictions, kept),
        "BERTScore": neural.bertscore(neural.load_bertscore(bertscore), predictions, kept),
        "BLEURT": neural.bleurt(neural.load_bleurt(bleurt), predictions, kept),
    }


def rouge(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return ROUGE-1, -2 and -L: mean over items of jackknifed F1, stemmed, in [0, 100]."""
    scorer = RougeScorer(list(ROUGES), use_stemmer=True)
    sums = dict.fromkeys(ROUGES, 0.0)
    for prediction, refs in zip(predictions, references, strict=True):
        # Without sentences being split first, which would need a downloaded model.
        words, *others = (
            " ".join(word_tokenize(text, preserve_line=True)) for text in (prediction, *refs)
        )
        scores = [scorer.score(other, words) for other in others]
        for name in ROUGES:
            sums[name] += jackknife([found[name].fmeasure for found in scores])
    return {ROUGES[name]: 100 * total / len(predictions) for name, total in sums.items()}


def jackknife(scores: Sequence[float]) -> float:
    """Return the mean, over the references, of the best score when that one is left out.

    The best is lost once, when it is itself left out, and the second best counts then. A single
    reference is not left out.

    Source: Lin, 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", section 2.1.
    """
    best, *others = sorted(scores, reverse=True)
    if not others:
        return best
    return (len(others) * best + others[0]) / len(scores)
