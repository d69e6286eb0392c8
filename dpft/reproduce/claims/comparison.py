"""When a comparison counts: defined in one place.

**Margin.** Two scores differ only if they lie further apart than ``max(2 s, r) + u/2``, as in
`dpft.reproduce.tables.verdicts`: ``s`` is the larger standard deviation of the two (each number's
the printed one where there is one, else that of our seeds within bounds), ``r`` is 1% of the larger
number and counts only where no deviation is known, ``u`` is the unit of the last printed digit. For
ours at a laptop's scale a printed deviation says nothing, so only that of our seeds counts there:
in full, and as 0.5% where it is less, since two seeds that happen to agree are no measure. Two of
ours that are shares of the scored records, as accuracy is, or means over few canaries, differ by
two standard errors of the difference of two such numbers or not at all.

Where both settings have runs with the same two seeds or more, their paired difference decides in
place of the margin: see `dpft.reproduce.claims.paired`. Whether ours is as good is decided so only
where the claim says how far apart is as good (``equivalence``).

**Outcomes.** With ``d`` the amount by which the first number is better and ``m`` the margin:

============== ===================== ==================== =====================
expected       holds                 fails                too close to tell
============== ===================== ==================== =====================
above, best    ``d > m``             ``d < -m``           else
not_below      ``d >= -m``           ``d < -m``           never
on_par         ``|d| <= m``          ``|d| > m``          never
a range        inside                outside by ``> m``   outside by at most m
============== ===================== ==================== =====================

Where seeds of ours lie far apart (mark ``W``) or the scored records are few, so that their error is
the margin, a difference within it is too close to tell for ``not_below`` and ``on_par`` too: a wide
margin shows nothing to be as good. Two of ours that are both no better than always giving the most
frequent answer (mark ``C``) show nothing: where nothing was learned, all settings are alike. One of
them beside a better one does differ, but of what was learned it says little: no claim with such a
comparison is confirmed or contradicted, it holds or fails.

A range that a paper states of its own printed numbers is arithmetic: there ``m`` is only what the
last digits may have been rounded by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from dpft.reproduce.claims.paired import Paired, paired
from dpft.reproduce.claims.schema import Expected
from dpft.reproduce.papers import Column
from dpft.reproduce.tables.marks import NOT_THE_PAPERS, Mark
from dpft.reproduce.tables.record_index import Answers
from dpft.reproduce.tables.verdicts import tolerance
from dpft.runs.lineage import names_apart
from dpft.tasks.metrics.shown import paired_error

# Of two numbers at the edge, binary rounding must not decide.
_EDGE = 1 + 1e-9


class Side(StrEnum):
    """Whose numbers are compared."""

    PRINTED = "printed"  # the paper's own
    PAPER = "paper"  # ours, at the paper's setting
    STAND_IN = "stand-in"  # ours, at the paper's scale, but not of its model, data or settings
    LAPTOP = "laptop"  # ours, at a laptop's
    COMPUTED = "computed"
    MEASURED = "measured"

    @property
    def scale(self) -> str:
        """Of the runs whose numbers they are."""
        return "laptop" if self is Side.LAPTOP else "paper"


class Outcome(StrEnum):
    """Of a single comparison."""

    HOLDS = "holds"
    FAILS = "fails"
    CLOSE = "too close to tell"
    NOT_APART = "not told apart"  # by the interval over seeds
    LACKING = "no number yet"
    CANNOT = "cannot be tested here"


@dataclass(frozen=True)
class Score:
    """A number that may be compared, or why there is none.

    Attributes:
        name: of its row.
        value: None where there is none.
        spread: its standard deviation over seeds, where one is known.
        sampling: the standard error that the number of scored records leaves to it, of shares and
            of means over canaries.
        why: it cannot be had.
        runs: behind it.
        marks: letters of `dpft.reproduce.tables.marks`.
        copied: whether the paper took it from elsewhere.
        by_seed: the numbers of ours that it is the mean of.
        answers: by seed, which records were answered rightly, where that is known.
        begun: names and digests of the weights that its runs began with, where that is known.
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
    begun: frozenset[tuple[str, str]] = frozenset()

    @property
    def stands_in(self) -> bool:
        """Whether it is not of the paper's own setting."""
        return any(mark.letter in self.marks for mark in NOT_THE_PAPERS)

    def text(self, column: Column, *, named: bool = False) -> str:
        """With the printed number of decimals, and where it is from."""
        text = f"{self.value:.{column.decimals}f}{' (copied)' if self.copied else ''}"
        return f"{text} ({self.name})" if named else text


@dataclass(frozen=True)
class Comparison:
    """Two numbers side by side, in words and as ``numbers`` by name; neither where there are none.

    Attributes:
        expected: of the claim, with the margin.
        ahead: whether the first number is the better one, however little; None: there is no better.
        why: it cannot be tested here.
        where: model, shape and machine of a measurement; ``brief`` is the same in two words.
        runs: run directories or files behind them.
        marks: letters of `dpft.reproduce.tables.marks`, of either number.
        check: which of the claim's it is of.
        paired: over the seeds that both have; None: the margin decides.
        idle: whether one of the two learned nothing, and the other something.
    """

    side: Side
    what: str
    expected: str
    outcome: Outcome
    text: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    ahead: bool | None = None
    why: str = ""
    where: str = ""
    brief: str = ""
    runs: tuple[str, ...] = ()
    marks: str = ""
    check: int = 1
    paired: Paired | None = None
    idle: bool = False

    @property
    def known(self) -> bool:
        """Whether there are numbers."""
        return self.outcome not in (Outcome.LACKING, Outcome.CANNOT)

    @property
    def by_margin(self) -> bool:
        """Whether the margin, and no interval over seeds, decided on numbers of runs of ours."""
        of_runs = self.side in (Side.PAPER, Side.STAND_IN, Side.LAPTOP, Side.MEASURED)
        return of_runs and self.known and self.paired is None


def in_words(expected: Expected, allowed: str = "the margin") -> str:
    """What is expected, for people."""
    low, high = expected.low, expected.high
    match expected.kind:
        case "above" | "best":
            return f"better by more than {allowed}"
        case "not_below":
            return f"not worse by more than {allowed}"
        case "on_par":
            return f"at most {allowed} apart"
        case "apart":
            return f"better by {range_in_words(low, high)}"
        case "ratio":
            return f"a ratio of {range_in_words(low, high)}"
        case "value":
            return range_in_words(low, high)


def range_in_words(low: float | None, high: float | None) -> str:
    """``3 to 5``, ``at least 3``, or the number where the ends are one."""
    if low is None or high is None:
        return f"at most {high:g}" if low is None else f"at least {low:g}"
    return f"{low:g}" if high - low < 1e-6 else f"{low:g} to {high:g}"


def in_range(
    low: float, high: float, ends: tuple[float | None, float | None], allowed: float = 0.0
) -> Outcome:
    """Whether ``low`` to ``high`` lies inside a range, outside by more than is allowed, or neither.

    A number without a range of its own is both; an end of None is no bound.
    """
    least = -math.inf if ends[0] is None else ends[0]
    most = math.inf if ends[1] is None else ends[1]
    if least <= low and high <= most:
        return Outcome.HOLDS
    allowed *= _EDGE
    outside = high < least - allowed or low > most + allowed
    return Outcome.FAILS if outside else Outcome.CLOSE


def ordered(kind: str, ahead: float, allowed: float) -> Outcome:
    """The outcome of ``above``, ``best``, ``not_below`` or ``on_par`` by the margin ``allowed``."""
    allowed *= _EDGE
    if kind == "on_par":
        return Outcome.HOLDS if abs(ahead) <= allowed else Outcome.FAILS
    if ahead < -allowed:
        return Outcome.FAILS
    return Outcome.HOLDS if kind == "not_below" or ahead > allowed else Outcome.CLOSE


def contrast(
    blank: Comparison, expected: Expected, column: Column, first: Score, second: Score
) -> Comparison:
    """Two numbers against each other.

    Args:
        blank: says whose they are and what is compared.
        expected: of the first to the second.
        column: says which is better, and how many digits are shown.
        first: with a value.
        second: the same.
    """
    a, b = first.value, second.value
    assert a is not None
    assert b is not None
    sign = 1 if column.higher_is_better else -1
    if expected.kind != "ratio" and not (expected.alike and expected.equivalence is None):
        allowed = 2 * of_records(column, first, second)
        both = paired(first.by_seed, second.by_seed, sign=sign, allowed=allowed)
        if both is not None:
            found = _by_seeds(blank, expected, column, (first, second), both)
            return _with_cautions(found, first, second)
    ahead = (a - b) * sign
    usual = margin(column, first, second)
    if expected.kind in ("apart", "ratio") and blank.side is Side.PRINTED:
        usual = 10.0**-column.decimals  # arithmetic: half a unit of each
    allowed = max(usual, 2 * math.hypot(first.sampling, second.sampling))
    marks = "".join(sorted({*first.marks, *second.marks}))
    text, ends = f"{ahead:+.{column.decimals}f}", (expected.low, expected.high)
    if expected.kind == "ratio":
        ratio = a / b if b else math.inf
        outcome = in_range(ratio, ratio, ends, allowed / abs(b) if b else 0.0)
        text = f"ratio {ratio:.3f}"
    elif expected.kind == "apart":
        outcome = in_range(ahead, ahead, ends, allowed)
    else:
        outcome = ordered(expected.kind, ahead, allowed)
        wide = allowed > usual or Mark.WIDE.letter in marks
        if outcome is Outcome.HOLDS and abs(ahead) <= allowed and wide:
            outcome = Outcome.CLOSE
    named = expected.kind == "best"
    if blank.side is not Side.PRINTED:
        shared = len({*first.by_seed} & {*second.by_seed})
        text += f" ({shared or 'no'} seed{'s' * (shared != 1)} in common: by the margin)"
    found = replace(
        blank,
        expected=in_words(expected, f"{allowed:.{column.decimals + 1}f}"),
        outcome=outcome,
        text=f"{first.text(column, named=named)} and {second.text(column, named=named)}: {text}",
        numbers={"first": a, "second": b, "ahead": ahead}
        | ({"margin": allowed} if math.isfinite(allowed) else {}),
        ahead=None if ahead == 0 or expected.kind == "ratio" else ahead > 0,
        runs=tuple(dict.fromkeys((*first.runs, *second.runs))),
        marks=marks,
    )
    return _with_cautions(found, first, second)


def _with_cautions(found: Comparison, first: Score, second: Score) -> Comparison:
    """A comparison, which decides nothing where neither setting learned anything.

    It says where one of them did not, and where the two began with different weights of one name:
    how much of the difference is theirs cannot be told.
    """
    if names := names_apart({*first.begun, *second.begun}):
        text = f"{found.text}; {', '.join(names)} had different weights in these runs"
        found = replace(found, text=text)
    idle = [Mark.CONSTANT.letter in one.marks for one in (first, second)]
    if not any(idle):
        return found
    if all(idle):
        text = f"{found.text}; neither is better than always giving the most frequent answer"
        outcome = Outcome.NOT_APART if found.paired else Outcome.CLOSE
        return replace(found, outcome=outcome, text=text)
    which = "first" if idle[0] else "second"
    text = f"{found.text}; the {which} is no better than always giving the most frequent answer"
    return replace(found, text=text, idle=True)


def _by_seeds(
    blank: Comparison,
    expected: Expected,
    column: Column,
    scores: tuple[Score, Score],
    both: Paired,
) -> Comparison:
    """The same by the interval over seeds, which holds no margin but that of the claim."""
    digits = column.decimals
    ends: tuple[float | None, float | None]
    margin = (expected.equivalence or 0.0) / 100 * abs(both.second)
    match expected.kind:
        case "apart":
            ends = (expected.low, expected.high)
        case "not_below":
            ends = (-margin, None)
        case "on_par":
            ends = (-margin, margin)
        case _:
            ends = (0.0, None)
    outcomes = {None: Outcome.NOT_APART, True: Outcome.FAILS, False: Outcome.HOLDS}
    outcome = outcomes[both.outside(ends)]
    if expected.kind in ("above", "best") and both.low == 0.0:
        outcome = Outcome.NOT_APART  # seeds without any difference: neither is the better one
    first, second = (
        replace(one, value=value)
        for one, value in zip(scores, (both.first, both.second), strict=True)
    )
    named = expected.kind == "best"
    texts = " and ".join(one.text(column, named=named) for one in (first, second))
    return replace(
        blank,
        expected=in_words(expected, f"{margin:.{digits + 1}f}" if expected.alike else "0"),
        outcome=outcome,
        text=f"{texts}: {both.text(digits, expected.kind)}",
        numbers={
            "first": both.first,
            "second": both.second,
            "ahead": both.difference,
            "low": both.low,
            "high": both.high,
            "seeds": both.seeds,
            "detectable": both.needed(expected.kind),
        }
        | ({"margin": margin} if expected.alike else {}),
        ahead=None if both.difference == 0 else both.difference > 0,
        runs=tuple(dict.fromkeys((*first.runs, *second.runs))),
        marks="".join(sorted({*first.marks, *second.marks})),
        paired=both,
    )


def of_records(column: Column, first: Score, second: Score) -> float:
    """The standard error that the scored records leave to a difference over common seeds.

    Where it is known which records each run answered rightly, that of the paired answers; else that
    of two shares of other records, which is rather too large.
    """
    seeds = sorted({*first.by_seed} & {*second.by_seed})
    known = [one.answers[s] for one in (first, second) for s in seeds if s in one.answers]
    same = {(one.references, len(one.right)) for one in known}
    if len(seeds) < 2 or len(known) < 2 * len(seeds) or len(same) != 1:
        return math.hypot(first.sampling, second.sampling)
    bits = [{s: one.answers[s].right for s in seeds} for one in (first, second)]
    return column.factor * paired_error(*bits)


def margin(column: Column, *scores: Score) -> float:
    """How far apart these two must lie at least to differ, whatever was sampled."""
    spread = max((one.spread for one in scores if one.spread is not None), default=None)
    values = (one.value for one in scores if one.value is not None)
    return max(tolerance(value, spread, column.decimals) for value in values)
