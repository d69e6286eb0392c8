"""Words of texts: how many, how varied, and which runs of them occur elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set

_WORD = re.compile(r"\w+")

Run = tuple[str, ...]


def words(text: str) -> list[str]:
    """The words of a text in lower case; signs between them are none."""
    return _WORD.findall(text.lower())


def runs(sequence: Sequence[str], n: int) -> Iterator[Run]:
    """All runs of ``n`` words, in order; none of a shorter text."""
    return (tuple(sequence[i : i + n]) for i in range(len(sequence) - n + 1))


def distinct(texts: Sequence[Sequence[str]], n: int) -> float | None:
    """Different runs of ``n`` words over all of them (Li et al. 2016, section 4.3: distinct-n).

    It falls as texts become more: compare as many with as many.

    Returns:
        From 0 to 1; None if no text has ``n`` words.
    """
    found = [run for text in texts for run in runs(text, n)]
    return len(set(found)) / len(found) if found else None


def found_in(
    groups: Sequence[Sequence[Sequence[str]]], others: Iterable[Sequence[str]], n: int
) -> list[tuple[float | None, float, float]]:
    """What of each group of texts occurs in ``others``.

    The others are read once, and nothing of them is held in memory: they may be many.

    Returns:
        For each group: the share of runs of ``n`` words that occur in any of the others, None if
        there are no runs; the share of texts that hold one; and the share of texts that are one of
        the others, word for word.
    """
    asked = {run for texts in groups for text in texts for run in runs(text, n)}
    wholes = {tuple(text) for texts in groups for text in texts}
    seen, whole = set[Run](), set[Run]()
    for other in others:
        seen.update(run for run in runs(other, n) if run in asked)
        if (all_of_it := tuple(other)) in wholes:
            whole.add(all_of_it)
    return [_shares(texts, seen, whole, n) for texts in groups]


def _shares(
    texts: Sequence[Sequence[str]], seen: Set[Run], whole: Set[Run], n: int
) -> tuple[float | None, float, float]:
    hits = [[run in seen for run in runs(text, n)] for text in texts]
    total = sum(map(len, hits))
    return (
        sum(map(sum, hits)) / total if total else None,
        sum(map(any, hits)) / len(texts),
        sum(tuple(text) in whole for text in texts) / len(texts),
    )
