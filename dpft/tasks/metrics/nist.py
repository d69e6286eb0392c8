"""The tokens of the `mteval` v13a scoring script, and its NIST score for several references."""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

Ngram = tuple[str, ...]

MAX_ORDER = 5
# The length penalty is 0.5 when a text has 2/3 of the words of the references.
_BETA = math.log(2) / math.log(1.5) ** 2
_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def mteval_tokenize(text: str) -> list[str]:
    """Tokens of `mteval` v13a: default tokenisation, entities decoded, ASCII letters lowercased.

    Only A to Z are lowercased: "É" stays. Line breaks count as spaces.
    """
    tokenized: str = _tokenizer()(" ".join(text.splitlines()))
    return tokenized.translate(_ASCII_LOWER).split()


def nist(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> float:
    """NIST score of a corpus, n-grams of up to five words, any number of references per segment.

    A matched n-gram weighs its information, log2(count of its first n-1 words / its own count), the
    counts taken over all references. Matches are clipped by the largest count in one reference.

    Args:
        hypotheses: Tokens, one sequence per segment, may be empty.
        references: Tokens, one or more sequences per segment. An empty one does not count as a
            reference.

    Returns:
        The score, 0 or more, with no fixed maximum: it grows with the corpus.

    Raises:
        ValueError: If no reference has a word, or the lengths differ.

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

    matched, counted = [0.0] * (MAX_ORDER + 1), [0] * (MAX_ORDER + 1)
    for hypothesis, refs in zip(hypotheses, references, strict=True):
        most: Counter[Ngram] = Counter()
        for ref in refs:
            most |= Counter(_ngrams(ref))
        for ngram, count in Counter(_ngrams(hypothesis)).items():
            counted[len(ngram)] += count
            if ngram in most:
                matched[len(ngram)] += information(ngram) * min(count, most[ngram])

    references_per_segment = sum(bool(ref) for refs in references for ref in refs) / len(references)
    penalty = _length_penalty(counted[1] / (reference_words / references_per_segment))
    return penalty * sum(m / max(n, 1) for m, n in zip(matched, counted, strict=True))


def _length_penalty(ratio: float) -> float:
    if ratio <= 0:
        return 0.0
    return math.exp(-_BETA * math.log(min(ratio, 1.0)) ** 2)


def _ngrams(words: Sequence[str]) -> Iterator[Ngram]:
    for n in range(1, MAX_ORDER + 1):
        for start in range(len(words) - n + 1):
            yield tuple(words[start : start + n])


@cache
def _tokenizer() -> Tokenizer13a:
    return Tokenizer13a()  # type: ignore[no-untyped-call]
