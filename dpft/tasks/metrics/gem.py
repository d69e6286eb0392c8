"""The scores of DART as the GEM benchmark's `gem-metrics` computes them.

Nothing is cleaned: BLEU and METEOR read the texts as they are. ROUGE reads words of NLTK, and
several references are jackknifed. `docs/reference/metrics.md` says how each was checked against
`gem-metrics`, and how to compute its BERTScore and BLEURT.

Source: Gehrmann et al., 2021, "The GEM Benchmark: Natural Language Generation, its Evaluation and
Metrics".
"""

from collections.abc import Sequence
from importlib.metadata import version

from nltk.tokenize import word_tokenize
from rouge_score.rouge_scorer import RougeScorer

from dpft.tasks.metrics import coco
from dpft.tasks.metrics.scorers import ROUGES, bleu, check_texts


def signature() -> str:
    """Return what decides the numbers, for a run record."""
    return (
        f"bleu:nrefs:var|case:lc|eff:no|tok:13a|smooth:exp|sacrebleu:{version('sacrebleu')}"
        f"+meteor:{coco.METEOR_VERSION}|norm|raw text|pycocoevalcap:{version('pycocoevalcap')}"
        f"+rouge:F1|stemmer:porter|tok:treebank, whole text|nltk:{version('nltk')}"
        f"|refs:jackknife|mean over items|rouge_score:{version('rouge_score')}"
        f"|java:{coco.java_version()}"
    )


def score(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return BLEU and ROUGE in [0, 100] and METEOR in [0, 1], as papers print them for DART."""
    check_texts(predictions, references)
    kept = [[ref for ref in refs if ref.strip()] for refs in references]
    return {
        # Every letter is lowercased, where E2E's scorer lowercases A to Z only.
        "BLEU": bleu(predictions, kept, lowercase=True),
        "METEOR": coco.meteor(predictions, kept),
        **rouge(predictions, kept),
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
