"""A verdict for each claim, by the paper's own numbers and by ours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpft.config.errors import ConfigError
from dpft.reproduce.claims.benches import compare_benches
from dpft.reproduce.claims.cache import numbers_of
from dpft.reproduce.claims.cells import Evidence, compare_cells
from dpft.reproduce.claims.comparison import (
    Comparison,
    Judgement,
    Outcome,
    Side,
    in_range,
    judge,
    range_in_words,
)
from dpft.reproduce.claims.schema import (
    BenchCheck,
    CellsCheck,
    Check,
    Claim,
    ComputedCheck,
    Untestable,
)
from dpft.reproduce.papers import PaperError


@dataclass(frozen=True)
class Result:
    """A claim with all that is known of it.

    Attributes:
        printed_by_check: comparisons of the paper's own numbers; checks without any are left out.
        ours_by_check: of ours, from each check those at the paper's setting; where that has no
            number those at the paper's scale with stand-ins, else a laptop's.
        aside: of ours, those with numbers that a better setting has put aside.
        reasons: why parts of the claim cannot be tested here.
        commands: what would give the missing numbers.
    """

    claim: Claim
    printed_by_check: tuple[tuple[Comparison, ...], ...]
    ours_by_check: tuple[tuple[Comparison, ...], ...]
    aside: tuple[Comparison, ...]
    reasons: tuple[str, ...]
    commands: tuple[str, ...]

    @property
    def printed(self) -> tuple[Comparison, ...]:
        """Those of every check."""
        return tuple(itertools.chain(*self.printed_by_check))

    @property
    def ours(self) -> tuple[Comparison, ...]:
        """Those of every check."""
        return tuple(itertools.chain(*self.ours_by_check))

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """All that were made."""
        return (*self.printed, *self.ours, *self.aside)

    @property
    def by_print(self) -> Judgement | None:
        """Whether the paper's own numbers bear it out; None where it prints none."""
        return judge(self.printed_by_check) if self.printed_by_check else None

    @property
    def by_us(self) -> Judgement:
        """Whether ours do."""
        return judge(self.ours_by_check)

    @property
    def sides(self) -> tuple[Side, ...]:
        """Where our numbers are from."""
        present = {one.side for one in self.ours if one.known}
        return tuple(side for side in Side if side in present)


def evaluate(claim: Claim, evidence: Evidence) -> Result:
    """Make every comparison of a claim.

    Raises:
        PaperError: for a check that names what is not there; names the check.
    """
    printed: list[tuple[Comparison, ...]] = []
    ours: list[tuple[Comparison, ...]] = []
    aside: list[Comparison] = []
    reasons: list[str] = []
    commands: list[str] = []
    for number, check in enumerate(claim.checks, 1):
        try:
            compared, missing = _compared(check, evidence)
        except (ConfigError, PaperError) as error:
            raise PaperError(f"{claim.name}, check {number}: {error}") from error
        by_setting, other = _by_setting(compared)
        printed.append(tuple(one for one in compared if one.side is Side.PRINTED))
        ours.append(tuple(by_setting))
        aside += other
        reasons += [check.why] if isinstance(check, Untestable) else []
        reasons += [one.why for one in by_setting if one.outcome is Outcome.CANNOT]
        commands += missing
    return Result(
        claim=claim,
        printed_by_check=tuple(filter(None, printed)),
        ours_by_check=tuple(filter(None, ours)),
        aside=tuple(aside),
        reasons=tuple(dict.fromkeys(reasons)),
        commands=tuple(dict.fromkeys(commands)),
    )


def _compared(check: Check, evidence: Evidence) -> tuple[list[Comparison], list[str]]:
    """A check's comparisons, and the commands that would give the missing numbers."""
    match check:
        case CellsCheck():
            return compare_cells(check, evidence)
        case BenchCheck():
            return compare_benches(check, evidence.benches)
        case ComputedCheck():
            return list(compute(check)), []
        case Untestable():
            return [], []


def compute(check: ComputedCheck) -> Iterator[Comparison]:
    """The comparisons of numbers that follow without a run.

    Raises:
        PaperError: for arguments that the function does not take, or a text that shows others.
    """
    for case in check.of:
        lists = [value if isinstance(value, list) else [value] for value in case.values()]
        for values in itertools.product(*lists):
            arguments = dict(zip(case, values, strict=True))
            try:
                numbers = arguments | numbers_of(check.function, arguments)
                what, text = check.what.format(**numbers), check.shows.format(**numbers)
            except (KeyError, TypeError, ValueError) as error:
                raise PaperError(f"{check.function} of {arguments}: {error!r}") from error
            value = float(numbers["value"])
            yield Comparison(
                side=Side.COMPUTED,
                what=what,
                expected=range_in_words(*check.within),
                outcome=in_range(value, value, check.within),
                text=text,
                numbers={"value": value},
            )


def _by_setting(compared: Sequence[Comparison]) -> tuple[list[Comparison], list[Comparison]]:
    """Ours: those that need no scale, with the first of these that has numbers; the rest aside."""
    by_side = {side: [one for one in compared if one.side is side] for side in Side}
    scales = [by_side[side] for side in (Side.PAPER, Side.STAND_IN, Side.LAPTOP)]
    known = [any(one.known for one in scale) for scale in scales]
    lacking = [any(one.outcome is Outcome.LACKING for one in scale) for scale in scales]
    best = next((i for has in (known, lacking) for i in range(3) if has[i]), 0)
    rest = [one for scale in scales[best + 1 :] for one in scale if one.known]
    return [*by_side[Side.COMPUTED], *by_side[Side.MEASURED], *scales[best]], rest
