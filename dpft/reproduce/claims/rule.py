"""The one statistical rule by which every comparison of scores, and so every claim, is judged.

A comparison states a range for the difference of two settings: above zero, at least minus a margin,
within a margin. The difference is the mean of the paired differences over the seeds that both
settings have. With ``n`` such seeds its interval has the half-width

    t(n - 1) * sqrt(s^2 / n + se^2),

where ``s`` is the deviation of the paired differences and ``se`` the standard error that a finite
test set leaves to a difference of two shares. A comparison holds if the interval is inside the
range, fails if it is outside, and is inconclusive otherwise. Holm's correction over all comparisons
of a claim takes the place of the level of 5%, so that one claim errs once in twenty.

Five paired seeds earn "confirmed" or "contradicted", three or four "tends to hold" or "tends to
fail". Fewer, or numbers that are not paired by seed, such as printed ones, earn no more than
"consistent" or "not consistent".
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

LEVEL = 0.05
SEEDS_FOR_A_TENDENCY, SEEDS_TO_CONFIRM = 3, 5


class Word(StrEnum):
    """The word on a comparison, or on all comparisons of a claim together, with its meaning."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        member = str.__new__(cls, value)
        member._value_, member.meaning = value, meaning
        return member

    CONFIRMED = "confirmed", "every comparison holds, each over five paired seeds or more"
    CONTRADICTED = "contradicted", "a comparison fails over five paired seeds or more"
    TENDS_TO_HOLD = "tends to hold", "every comparison holds, some over only three or four seeds"
    TENDS_TO_FAIL = "tends to fail", "a comparison fails over three or four seeds"
    CONSISTENT = "consistent", "every comparison agrees, some without three paired seeds"
    NOT_CONSISTENT = "not consistent", "a comparison disagrees, without three paired seeds"
    HOLDS = "holds", "computed, or measured in every round of a benchmark; no seeds are involved"
    FAILS = "fails", "computed, or measured in every round of a benchmark; none of them holds"
    MIXED = "mixed", "some comparisons fail, others hold, both over three paired seeds or exactly"
    INCONCLUSIVE = "inconclusive", "a comparison is too uncertain, and none fails"
    NOT_YET = "not yet testable", "no numbers yet; the commands below give them"
    CANNOT = "cannot be tested here", "no run of dpft gives the numbers; dpft claims NAME says why"


# From the weakest evidence to the strongest.
HOLDING = (Word.CONSISTENT, Word.TENDS_TO_HOLD, Word.CONFIRMED, Word.HOLDS)
FAILING = (Word.NOT_CONSISTENT, Word.TENDS_TO_FAIL, Word.CONTRADICTED, Word.FAILS)


@dataclass(frozen=True)
class Difference:
    """A mean difference, its standard error, and the number of paired seeds that it is over."""

    mean: float
    error: float
    seeds: int = 0
    freedom: float = math.inf

    @classmethod
    def over_seeds(cls, differences: Sequence[float], error_of_records: float = 0.0) -> Self:
        """Return the mean of at least two paired differences."""
        count = len(differences)
        error_of_seeds = statistics.stdev(differences) / math.sqrt(count)
        error = math.hypot(error_of_seeds, error_of_records)
        return cls(statistics.fmean(differences), error, count, count - 1)

    @property
    def interval(self) -> tuple[float, float]:
        """Student's 95% interval, of one comparison alone."""
        from scipy.special import stdtrit

        half = float(stdtrit(self.freedom, 1 - LEVEL / 2)) * self.error
        return self.mean - half, self.mean + half

    def p_values(self, low: float, high: float) -> tuple[float, float]:
        """Return the two-sided p-values against "outside of the range" and against "inside"."""
        at_most_low, at_most_high = self._against_at_most(low), self._against_at_most(high)
        outside = 2 * max(at_most_low, 1 - at_most_high)
        inside = 2 * min(1 - at_most_low, at_most_high)
        return min(outside, 1.0), min(inside, 1.0)

    def _against_at_most(self, bound: float) -> float:
        """Return the one-sided p-value against a true difference of at most ``bound``."""
        from scipy.special import stdtr

        if self.error == 0 or math.isinf(bound):
            return 0.5 if self.mean == bound else float(self.mean < bound)
        return float(stdtr(self.freedom, (bound - self.mean) / self.error))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted by Holm (1979) for being so many."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def judge(tests: Sequence[tuple[Difference, float, float]]) -> list[tuple[Word, float]]:
    """Return the word on each comparison of a claim, and its adjusted p-value.

    Each comparison has its difference and the range in which the claim expects it.
    """
    both = [difference.p_values(low, high) for difference, low, high in tests]
    judged = []
    for (difference, _, _), (outside, inside), p in zip(
        tests, both, holm([min(pair) for pair in both]), strict=True
    ):
        seeds = difference.seeds
        strength = (seeds >= SEEDS_FOR_A_TENDENCY) + (seeds >= SEEDS_TO_CONFIRM)
        words = HOLDING if outside < inside else FAILING
        judged.append((words[strength] if p <= LEVEL else Word.INCONCLUSIVE, p))
    return judged


def combined(words: Sequence[Word]) -> Word:
    """Return the word on a claim, which states all of its comparisons.

    The weakest comparison says how well it holds; one that fails is enough for it to fail, with the
    strength of the strongest that does. It is mixed if comparisons on both sides are no weaker than
    a tendency: agreement or disagreement of less than three paired seeds settles nothing.
    """
    holding = [HOLDING.index(word) for word in words if word in HOLDING]
    failing = [FAILING.index(word) for word in words if word in FAILING]
    if failing:
        weaker_side = min(max(failing), max(holding, default=0))
        return FAILING[max(failing)] if weaker_side == 0 else Word.MIXED
    if Word.INCONCLUSIVE in words:
        return Word.INCONCLUSIVE
    if holding:
        return HOLDING[min(holding)]
    return Word.NOT_YET if Word.NOT_YET in words else Word.CANNOT
