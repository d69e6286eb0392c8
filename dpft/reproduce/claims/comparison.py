"""The outcome of a comparison of two numbers, and the verdict on a claim's comparisons together.

**By seeds.** Where both settings have runs with the same two seeds or more, Student's 95% interval
of their paired differences decides. Its least half-width is two standard errors of the difference
that few scored records leave, which no seed lessens. Whether ours is as good is decided so only
where the claim says how far apart is as good (``equivalence``).

**By the margin.** Printed numbers, and ours with fewer common seeds, are points, and differ only if
they are further apart than ``max(2 s, r) + u/2``, as in `dpft.reproduce.tables.verdicts`; ``s`` is
the larger deviation of the two, of the larger number where none is known ``r`` is 1%. At a laptop's
scale only the deviation of our seeds counts, and 0.5% where it is less. A range that a paper states
of its printed numbers is arithmetic: only the rounding of the last digits counts.

A wide margin (of few scored records, or of seeds far apart, mark ``W``) shows nothing to be as
good. Where no number, or one of the two, is better than always giving the most frequent answer
(mark ``C``), the comparison decides nothing, or confirms and contradicts nothing.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from dpft.reproduce.claims.claim import Expected
from dpft.reproduce.papers import Column
from dpft.reproduce.tables.record_index import Answers
from dpft.reproduce.tables.verdicts import NOT_THE_PAPERS, Mark, tolerance
from dpft.tasks.metrics.shown import paired_error

# Of two numbers at the edge, binary rounding must not decide.
_EDGE = 1 + 1e-9


class _Explained(StrEnum):
    """A value that is stored, and its meaning for readers."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        member = str.__new__(cls, value)
        member._value_, member.meaning = value, meaning
        return member


class Side(_Explained):
    """The origin of the numbers that are compared."""

    PRINTED = "printed", "printed"
    PAPER = "paper", "paper scale"
    STAND_IN = "stand-in", "paper scale with stand-ins, trend only"
    LAPTOP = "laptop", "laptop scale, trend only"
    COMPUTED = "computed", "computed"
    MEASURED = "measured", "measured"


class Outcome(_Explained):
    """The outcome of a comparison, or of all comparisons of a claim together."""

    CONFIRMED = "confirmed here", "it holds, every comparison of runs by its interval over seeds"
    CONTRADICTED = (
        "contradicted here",
        "it fails, by intervals over seeds, in as many comparisons of one of its checks as are "
        "inconclusive, or more",
    )
    INCONCLUSIVE = "inconclusive", "every interval over seeds is too wide to tell"
    HOLDS = "holds", "every comparison that came out bears the claim out"
    IN_PART = (
        "holds in part",
        "what came out bears it out, but some of it is inconclusive, or most of one check is too "
        "close to tell",
    )
    FAILS = "fails", "every comparison that came out contradicts it"
    FAILS_IN_PART = (
        "fails in part",
        "some intervals over seeds contradict it, but more are inconclusive",
    )
    MIXED = "mixed", "some do and some do not"
    CLOSE = "too close to tell", "differences are within the margin"
    NOT_YET = "not yet testable", "no numbers yet; the commands below give them"
    CANNOT = "cannot be tested here", "no run of dpft gives them; dpft claims NAME says why"


@dataclass(frozen=True)
class Score:
    """The number of a row, or ``why`` there is none.

    ``spread`` is its deviation over seeds, ``sampling`` the standard error that the number of
    scored records leaves to it. The paper took a ``copied`` one from elsewhere.
    """

    name: str
    value: float | None
    spread: float | None = None
    sampling: float = 0.0
    why: str = ""
    runs: tuple[str, ...] = ()
    marks: str = ""
    copied: bool = False
    by_seed: Mapping[int, float] = field(default_factory=dict)
    answers: Mapping[int, Answers] = field(default_factory=dict)

    @property
    def stands_in(self) -> bool:
        """Return whether it is not of the paper's own setting."""
        return any(mark.letter in self.marks for mark in NOT_THE_PAPERS)


@dataclass(frozen=True)
class Comparison:
    """Two numbers, in words and as ``numbers`` by name; none where they are missing.

    ``why`` it cannot be tested here; ``where``: table, or model, shape and machine (``brief`` is
    shorter); ``check``: the number of the claim's check; ``seeds`` in common, where the interval
    over them decides; ``idle``: whether one of the two learned nothing, and the other something.
    """

    side: Side
    what: str
    expected: str
    outcome: Outcome
    text: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    why: str = ""
    where: str = ""
    brief: str = ""
    runs: tuple[str, ...] = ()
    marks: str = ""
    check: int = 1
    seeds: int = 0
    idle: bool = False

    @property
    def known(self) -> bool:
        """Return whether it has numbers."""
        return self.outcome not in (Outcome.NOT_YET, Outcome.CANNOT)


def in_words(expected: Expected, allowed: str = "the margin") -> str:
    """Return what is expected, for people: ``better by 3 to 5``."""
    low, high = expected.low, expected.high
    if low is None:
        numbers = "" if high is None else f"at most {high:g}"
    elif high is None:
        numbers = f"at least {low:g}"
    else:
        numbers = f"{low:g}" if high - low < 1e-6 else f"{low:g} to {high:g}"
    words = {
        "not_below": f"not worse by more than {allowed}",
        "on_par": f"at most {allowed} apart",
        "apart": f"better by {numbers}",
        "ratio": f"a ratio of {numbers}",
        "value": numbers,
    }
    return words.get(expected.kind, f"better by more than {allowed}")


def in_range(
    low: float, high: float, ends: tuple[float | None, float | None], allowed: float = 0.0
) -> Outcome:
    """Hold in a range, fail outside by more than is allowed, else be close; None is no bound."""
    least = -math.inf if ends[0] is None else ends[0]
    most = math.inf if ends[1] is None else ends[1]
    if least <= low and high <= most:
        return Outcome.HOLDS
    allowed *= _EDGE
    outside = high < least - allowed or low > most + allowed
    return Outcome.FAILS if outside else Outcome.CLOSE


def contrast(
    blank: Comparison, expected: Expected, column: Column, first: Score, second: Score
) -> Comparison:
    """Compare two numbers; ``blank`` says whose they are and what is compared."""
    assert first.value is not None
    assert second.value is not None
    kind, sign, digits = expected.kind, 1 if column.higher_is_better else -1, column.decimals
    a, b = first.value, second.value
    seeds = sorted({*first.by_seed} & {*second.by_seed})
    by_seeds = len(seeds) > 1 and kind != "ratio"
    by_seeds = by_seeds and not (expected.no_difference and expected.equivalence is None)
    if by_seeds:
        a, b = (statistics.fmean(one.by_seed[s] for s in seeds) for one in (first, second))
        low, high = interval(
            [sign * (first.by_seed[seed] - second.by_seed[seed]) for seed in seeds],
            2 * _error_of_records(column, first, second, seeds),
        )
        margin, usual, slack = (expected.equivalence or 0.0) / 100 * abs(b), 0.0, 0.0
        found = f"{sign * (a - b):+.{digits}f}, 95% interval {low:+.{digits}f} to "
        found += f"{high:+.{digits}f} over {len(seeds)} seeds"
        shown, undecided = f"{margin:.{digits + 1}f}" if margin else "0", Outcome.INCONCLUSIVE
        numbers = {"low": low, "high": high, "seeds": float(len(seeds))}
    else:
        spread = max((x.spread for x in (first, second) if x.spread is not None), default=None)
        usual = max(tolerance(value, spread, digits) for value in (a, b))
        if blank.side is Side.PRINTED and kind in ("apart", "ratio"):
            usual = 10.0**-digits  # arithmetic: half a unit of each
        elif blank.side is Side.PRINTED and kind == "value":
            # Text rounds more than tables do.
            usual = 0.5 * 10.0 ** -len(f"{b:g}".partition(".")[2])
        margin = slack = max(usual, 2 * math.hypot(first.sampling, second.sampling))
        low = high = sign * (a - b)
        found, shown, undecided = f"{low:+.{digits}f}", f"{margin:.{digits + 1}f}", Outcome.CLOSE
        numbers = {"margin": margin} if math.isfinite(margin) else {}
        if kind == "ratio":
            low = high = a / b if b else math.inf
            slack, found = margin / abs(b) if b else 0.0, f"ratio {low:.3f}"
        if blank.side is not Side.PRINTED:
            one = f"{len(seeds) or 'no'} seed{'s' * (len(seeds) != 1)}"
            found += f" ({one} in common: by the margin)"
    edge = margin * _EDGE
    if kind in ("above", "best"):
        outcome = in_range(low, high, (edge, None), 0.0 if by_seeds else 2 * edge)
        if by_seeds and low <= 0 <= high:
            outcome = undecided  # seeds without any difference, too
    elif kind == "not_below":
        outcome = in_range(low, high, (-edge, None))
    elif kind in ("on_par", "value"):
        outcome = in_range(low, high, (-edge, edge))
    else:
        outcome = in_range(low, high, (expected.low, expected.high), slack)
    marks = "".join(sorted({*first.marks, *second.marks}))
    wide = not by_seeds and (margin > usual or Mark.WIDE.letter in marks)
    shows_little = expected.no_difference and wide and abs(low) <= margin
    if outcome is Outcome.CLOSE or (shows_little and outcome is Outcome.HOLDS):
        outcome = undecided
    idle = [Mark.CONSTANT.letter in one.marks for one in (first, second)]
    if all(idle):
        found += "; neither is better than always giving the most frequent answer"
        outcome = undecided
    elif any(idle):
        which = "first" if idle[0] else "second"
        found += f"; the {which} is no better than always giving the most frequent answer"
    texts = [
        f"{value:.{digits}f}{' (copied)' if one.copied else ''}"
        + (f" ({one.name})" if kind in ("best", "value") else "")
        for value, one in ((a, first), (b, second))
    ]
    return replace(
        blank,
        expected=in_words(expected, shown),
        outcome=outcome,
        text=f"{' and '.join(texts)}: {found}",
        numbers={"first": a, "second": b, "ahead": sign * (a - b)} | numbers,
        runs=tuple(dict.fromkeys((*first.runs, *second.runs))),
        marks=marks,
        seeds=len(seeds) if by_seeds else 0,
        idle=any(idle) and not all(idle),
    )


def interval(differences: Sequence[float], least: float = 0.0) -> tuple[float, float]:
    """Return Student's 95% interval of a mean; ``least`` is the least half-width."""
    from scipy.special import stdtrit

    count, mean = len(differences), statistics.fmean(differences)
    critical = float(stdtrit(count - 1, 0.975))
    half = max(critical * statistics.stdev(differences) / math.sqrt(count), least)
    return mean - half, mean + half


def _error_of_records(column: Column, first: Score, second: Score, seeds: Sequence[int]) -> float:
    """Return the standard error that the scored records leave to a difference over common seeds.

    That of the paired answers where all are known; else that of two shares of other records, which
    is rather too large.
    """
    known = [one.answers[s] for one in (first, second) for s in seeds if s in one.answers]
    same = {(one.references, len(one.right)) for one in known}
    if len(known) < 2 * len(seeds) or len(same) != 1:
        return math.hypot(first.sampling, second.sampling)
    bits = [{s: one.answers[s].right for s in seeds} for one in (first, second)]
    return column.factor * paired_error(*bits)


@dataclass(frozen=True)
class Judgement:
    """The verdict on a claim, the comparisons by `Outcome`, and the least seeds of an interval."""

    verdict: Outcome
    count: Mapping[Outcome, int]
    seeds: int = 0

    @property
    def known(self) -> int:
        """The comparisons that have numbers."""
        return sum(self.count.values()) - self.count[Outcome.NOT_YET] - self.count[Outcome.CANNOT]


def judge(comparisons: Sequence[Comparison]) -> Judgement:
    """Return what the comparisons of a claim say together.

    Of those that came out: all hold, ``holds``; all fail, ``fails``; some of each, ``mixed``. The
    checks of a claim together are the claim, so one of which more is too close to tell than holds
    leaves no more than ``holds in part``. Where all numbers of runs have intervals over seeds, a
    claim is ``confirmed here`` if every interval says so, and ``contradicted here`` if none bears
    it out and in one of its checks as many fail as are inconclusive: where nothing differs, one
    interval in forty says "better" and one "worse" by chance.
    """
    count = Counter(one.outcome for one in comparisons)
    undecided = count[Outcome.CLOSE] + count[Outcome.INCONCLUSIVE]
    mostly_open = contradicts = False
    for check in {one.check for one in comparisons}:
        of_check = Counter(one.outcome for one in comparisons if one.check == check)
        open_ = of_check[Outcome.CLOSE] + of_check[Outcome.INCONCLUSIVE]
        mostly_open |= open_ > of_check[Outcome.HOLDS]
        contradicts |= 0 < of_check[Outcome.FAILS] >= open_
    seeds = [one.seeds for one in comparisons if one.seeds]
    # No margin decided on runs, and every setting learned something.
    by_seeds = bool(seeds) and all(
        not one.idle and (one.seeds or one.side in (Side.PRINTED, Side.COMPUTED))
        for one in comparisons
        if one.known
    )
    if count[Outcome.HOLDS] and count[Outcome.FAILS]:
        verdict = Outcome.MIXED
    elif count[Outcome.HOLDS] and (mostly_open or (by_seeds and undecided)):
        verdict = Outcome.IN_PART
    elif count[Outcome.HOLDS]:
        verdict = Outcome.CONFIRMED if by_seeds else Outcome.HOLDS
    elif count[Outcome.FAILS] and by_seeds:
        verdict = Outcome.CONTRADICTED if contradicts else Outcome.FAILS_IN_PART
    elif count[Outcome.FAILS]:
        verdict = Outcome.FAILS
    elif undecided:
        verdict = Outcome.INCONCLUSIVE if by_seeds else Outcome.CLOSE
    else:
        verdict = Outcome.NOT_YET if count[Outcome.NOT_YET] else Outcome.CANNOT
    return Judgement(verdict, count, min(seeds, default=0))
