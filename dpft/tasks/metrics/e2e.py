"""The five scores of the E2E NLG challenge, equal to those of its official scorer.

BLEU and NIST are those of `mteval` v13a. METEOR, ROUGE-L and CIDEr are those of the COCO caption
evaluation. How equality was checked stands in `docs/reference/metrics.md`.

Source: Dusek, Novikova and Rieser, 2020, "Evaluating the State-of-the-Art of End-to-End Natural
Language Generation: The E2E NLG Challenge".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.metadata import version
from itertools import zip_longest

import sacrebleu

from dpft.tasks.metrics import coco, java
from dpft.tasks.metrics.inputs import check_texts
from dpft.tasks.metrics.nist import mteval_tokenize, nist

SIGNATURE = (
    f"bleu:nrefs:var|case:ascii-lc|eff:no|tok:13a|smooth:exp|sacrebleu:{version('sacrebleu')}"
    "+nist:order:5|case:ascii-lc|tok:13a"
    f"+coco:pycocoevalcap:{version('pycocoevalcap')}|meteor:{coco.METEOR_VERSION}"
    f"|ptb:{coco.PTB_VERSION}"
)
"""What decides the numbers, for a run record. `signature` adds the Java in use."""

BLEU_ORDER = 4


def signature() -> str:
    """`SIGNATURE` and the version of the Java in use.

    Raises:
        JavaError: If there is no Java.
    """
    return f"{SIGNATURE}|java:{java.java_version()}"


def score(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Scores a corpus as the official E2E scorer does, on the scales that it prints.

    Args:
        predictions: Raw text, one per item (one per meaning representation), may be "".
        references: Raw texts, one or more per item, in the order of the data file.

    Returns:
        "BLEU" in [0, 1] (papers print it times 100), "NIST" from 0 up, "METEOR" in [0, 1],
        "ROUGE_L" in [0, 1] and "CIDEr" in [0, 10]. Higher is better.

    Raises:
        ValueError: If there are no items, the lengths differ, an item has no reference that
            is not empty, or no reference has a word.
        TypeError: If a string stands where a sequence of strings is expected.
        JavaError: If Java is missing or fails.
    """
    check_texts(predictions, references)
    tokens = [mteval_tokenize(text) for text in predictions]
    reference_tokens = [[mteval_tokenize(text) for text in refs] for refs in references]
    scores = {"BLEU": bleu(tokens, reference_tokens), "NIST": nist(tokens, reference_tokens)}

    captions = coco.ptb_tokenize(predictions)
    reference_captions = iter(coco.ptb_tokenize([text for refs in references for text in refs]))
    grouped = [[next(reference_captions) for _ in refs] for refs in references]
    scores["CIDEr"] = coco.cider(captions, grouped)
    scores["ROUGE_L"] = coco.rouge_l(captions, grouped)
    scores["METEOR"] = coco.meteor(captions, grouped)
    return {name: scores[name] for name in ("BLEU", "NIST", "METEOR", "ROUGE_L", "CIDEr")}


def bleu(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> float:
    """BLEU-4 of a corpus as `mteval` v13a computes it, closest reference length.

    sacrebleu counts. The last step is not its own, as it returns 0 where `mteval` does not: when no
    word matches, and when no hypothesis is long enough to have a 4-gram (such an order is skipped,
    though the mean is still over four). Everywhere else the two agree.

    Args:
        hypotheses: Tokens, one sequence per segment, may be empty.
        references: Tokens, one or more sequences per segment.

    Returns:
        The score, in [0, 1].

    Source: Papineni et al., ACL 2002, "BLEU: a Method for Automatic Evaluation of Machine
    Translation".
    """
    # mteval takes an empty reference for padding, except as a segment's first.
    kept = [[" ".join(ref) for i, ref in enumerate(refs) if ref or i == 0] for refs in references]
    counts = sacrebleu.corpus_bleu(
        [" ".join(hypothesis) for hypothesis in hypotheses],
        list(zip_longest(*kept)),  # one stream per reference number, None where there is none
        tokenize="none",
        force=True,  # the text is tokenised on purpose: no warning about it
    )
    if counts.sys_len == 0:
        return 0.0
    log_precisions, smoothing = 0.0, 1.0
    for matches, total in zip(counts.counts, counts.totals, strict=True):
        if total and not matches:
            smoothing /= 2  # the k-th order without a match counts 1/2^k matches
        if total:
            log_precisions += math.log((matches or smoothing) / total)
    brevity = min(0.0, 1 - counts.ref_len / counts.sys_len)
    return math.exp(log_precisions / BLEU_ORDER + brevity)
