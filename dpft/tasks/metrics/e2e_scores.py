"""The five scores of the E2E NLG challenge, equal to those of its official scorer.

BLEU and NIST are those of `mteval` v13a. METEOR, ROUGE-L and CIDEr are those of the COCO caption
evaluation. `docs/reference/metrics.md` says how equality was checked.

Source: Dusek, Novikova and Rieser, 2020, "Evaluating the State-of-the-Art of End-to-End Natural
Language Generation: The E2E NLG Challenge".
"""

import math
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import zip_longest

import sacrebleu
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from dpft.tasks.metrics import coco
from dpft.tasks.metrics.scorers import check_texts

BLEU_ORDER = 4
NIST_ORDER = 5
# NIST's length penalty is 0.5 when a text has 2/3 of the words of the references.
_BETA = math.log(2) / math.log(1.5) ** 2
_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_TOKENIZER = Tokenizer13a()  # type: ignore[no-untyped-call]

Ngram = tuple[str, ...]


def signature() -> str:
    """Return what decides the numbers, for a run record."""
    return (
        f"bleu:nrefs:var|case:ascii-lc|eff:no|tok:13a|smooth:exp|sacrebleu:{version('sacrebleu')}"
        "+nist:order:5|case:ascii-lc|tok:13a"
        f"+coco:pycocoevalcap:{version('pycocoevalcap')}|meteor:{coco.METEOR_VERSION}"
        f"|ptb:{coco.PTB_VERSION}|java:{coco.java_version()}"
    )


def score(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Score a corpus as the official E2E scorer does, on the scales that it prints.

    Returns:
        "BLEU" in [0, 1] (papers print it times 100), "NIST" from 0 up, "METEOR" in [0, 1],
        "ROUGE_L" in [0, 1] and "CIDEr" in [0, 10]. Higher is better.
    """
    check_texts(predictions, references)
    tokens = [mteval_tokenize(text) for text in predictions]
    reference_tokens = [[mteval_tokenize(text) for text in refs] for refs in references]
    captions = coco.ptb_tokenize(predictions)
    reference_captions = iter(coco.ptb_tokenize([text for refs in references for text in refs]))
    grouped = [[next(reference_captions) for _ in refs] for refs in references]
    return {
        "BLEU": bleu(tokens, reference_tokens),
        "NIST": nist(tokens, reference_tokens),
        "METEOR": coco.meteor(captions, grouped),
        "ROUGE_L": coco.rouge_l(captions, grouped),
        "CIDEr": coco.cider(captions, grouped),
    }


def mteval_tokenize(text: str) -> list[str]:
    """Return tokens of `mteval` v13a: entities decoded, ASCII letters lowercased.

    Only A to Z are lowercased: "É" stays. Line breaks count as spaces.
    """
    tokenized: str = _TOKENIZER(" ".join(text.splitlines()))
    return tokenized.translate(_ASCII_LOWER).split()


def bleu(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> float:
    """Return BLEU-4 of a corpus of tokens in [0, 1] as `mteval` v13a computes it.

    sacrebleu counts. The last step is not its own, as it returns 0 where `mteval` does not: when no
    word matches, and when no hypothesis is long enough to have a 4-gram (such an order is skipped,
    though the mean is still over four). Everywhere else the two agree.

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


def nist(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> float:
    """Return the NIST score of a corpus of tokens: 0 or more, growing with the corpus.

    A matched n-gram weighs its information, log2(count of its first n-1 words / its own count), the
    counts taken over all references. Matches are clipped by the largest count in one reference. An
    empty reference does not count as one.

    Source: Doddington, HLT 2002, "Automatic Evaluation of Machine Translation Quality Using N-gram
    Co-Occurrence Statistics".
    """
    in_references = Counter(g for refs in references for ref in refs for g in _ngrams(ref))
    reference_words = sum(len(ref) for refs in references for ref in refs)
    if not reference_words:
        raise ValueError("NIST needs a reference with a word in it, got only empty references")

    def information(ngram: Ngram) -> float:
        # In the official script a prefix that is the word "0" is false, as the empty prefix is.
        prefix = ngram[:-1]
        above = reference_words if prefix in ((), ("0",)) else in_references[prefix]
        return math.log2(above / in_references[ngram])

    matched, counted = [0.0] * (NIST_ORDER + 1), [0] * (NIST_ORDER + 1)
    for hypothesis, refs in zip(hypotheses, references, strict=True):
        most: Counter[Ngram] = Counter()
        for ref in refs:
            most |= Counter(_ngrams(ref))
        for ngram, count in Counter(_ngrams(hypothesis)).items():
            counted[len(ngram)] += count
            if ngram in most:
                matched[len(ngram)] += information(ngram) * min(count, most[ngram])

    references_per_segment = sum(bool(ref) for refs in references for ref in refs) / len(references)
    ratio = counted[1] / (reference_words / references_per_segment)
    penalty = math.exp(-_BETA * math.log(min(ratio, 1.0)) ** 2) if ratio > 0 else 0.0
    return penalty * sum(m / max(n, 1) for m, n in zip(matched, counted, strict=True))


def _ngrams(words: Sequence[str]) -> Iterator[Ngram]:
    for n in range(1, NIST_ORDER + 1):
        for start in range(len(words) - n + 1):
            yield tuple(words[start : start + n])
