"""A verdict for each claim, by the paper's own numbers and by ours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dpft.config.errors import ConfigError
from dpft.reproduce.bench.catalog import BASELINE
from dpft.reproduce.bench.documents import BenchFile
from dpft.reproduce.claims.cache import numbers_of
from dpft.reproduce.claims.cells import Evidence, compare_cells
from dpft.reproduce.claims.comparison import (
    Comparison,
    Outcome,
    Side,
    in_range,
    in_words,
    range_in_words,
)
from dpft.reproduce.claims.judgement import Judgement, judge
from dpft.reproduce.claims.schema import (
    BenchCheck,
    CellsCheck,
    Check,
    Claim,
    ComputedCheck,
    Expected,
    Untestable,
)
from dpft.reproduce.papers import PaperError

_NAMES = {
    "time": "time of a step",
    "memory": "peak memory",
    "batch": "largest batch",
    "speed": "records per second at the largest batch",
}


@dataclass(frozen=True)
class Result:
    """A claim with all that is known of it.

    Attributes:
        printed: comparisons of the paper's own numbers.
        ours: from each check those at the paper's setting; where that has no number those at the
            paper's scale with stand-ins, else a laptop's.
        aside: of ours, those with numbers that a better setting has put aside.
        reasons: why parts of the claim cannot be tested here.
        commands: what would give the missing numbers.
    """

    claim: Claim
    printed: tuple[Comparison, ...]
    ours: tuple[Comparison, ...]
    aside: tuple[Comparison, ...]
    reasons: tuple[str, ...]
    commands: tuple[str, ...]

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """All that were made."""
        return (*self.printed, *self.ours, *self.aside)

    @property
    def by_print(self) -> Judgement | None:
        """Whether the paper's own numbers bear it out; None where it prints none."""
        return judge(self.printed) if self.printed else None

    @property
    def by_us(self) -> Judgement:
        """Whether ours do."""
        return judge(self.ours)

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
    printed: list[Comparison] = []
    ours: list[Comparison] = []
    aside: list[Comparison] = []
    reasons: list[str] = []
    commands: list[str] = []
    for number, check in enumerate(claim.checks, 1):
        try:
            compared, missing = _compared(check, evidence)
        except (ConfigError, PaperError) as error:
            raise PaperError(f"{claim.name}, check {number}: {error}") from error
        compared = [replace(one, check=number) for one in compared]
        by_setting, other = _by_setting(compared)
        printed += [one for one in compared if one.side is Side.PRINTED]
        ours += by_setting
        aside += other
        reasons += [check.why] if isinstance(check, Untestable) else []
        reasons += [one.why for one in by_setting if one.outcome is Outcome.CANNOT]
        commands += missing
    return Result(
        claim,
        tuple(_told_apart(printed, claim)),
        tuple(_told_apart(ours, claim)),
        tuple(aside),
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


def compare_benches(
    check: BenchCheck, benches: Sequence[BenchFile]
) -> tuple[list[Comparison], list[str]]:
    """One comparison for each file and pair of styles that is there; else one without numbers.

    The papers' memory is a GPU's. On a CPU the peak is of the whole process, and with few records
    most of it is the model: it is shown and decides nothing.

    Returns:
        The comparisons, and the command that would give the missing numbers, or those that decide.
    """
    expected, quantity = in_words(Expected("ratio", *check.ratio)), _NAMES[check.quantity]
    pairs = {
        (a, b): f"{_name(a)} to {_name(b)}" for a in check.first for b in check.second if a != b
    }
    compared: list[Comparison] = []
    for file in benches:
        if file.model not in check.models or (file.length or 0) < (check.tokens or 0):
            continue
        undecided = check.quantity == "memory" and file.device == "cpu"
        for (first, second), name in pairs.items():
            if (ratio := file.ratio(check.quantity, first, second)) is None:
                continue
            outcome = in_range(ratio.min, ratio.max, check.ratio)
            compared.append(
                Comparison(
                    side=Side.MEASURED,
                    what=f"{quantity}: {name}",
                    expected=f"{expected}, decided on a GPU only" if undecided else expected,
                    outcome=Outcome.CLOSE if undecided else outcome,
                    text=f"{ratio.median:.2f} ({ratio.min:.2f} to {ratio.max:.2f})",
                    numbers={"ratio": ratio.median, "low": ratio.min, "high": ratio.max},
                    where=", ".join(file.labels),
                    brief=f"{file.model} on {file.device}",
                    runs=(file.path.name,),
                )
            )
    if not compared:
        what = f"{quantity}: {' or '.join(pairs.values())}"
        return [Comparison(Side.MEASURED, what, expected, Outcome.LACKING)], [check.command]
    on_gpu = check.quantity == "memory" and all(one.outcome is Outcome.CLOSE for one in compared)
    return compared, [f"{check.command} --device cuda"] if on_gpu else []


def _name(style: str) -> str:
    return "non-private" if style == BASELINE else style


def _told_apart(compared: Sequence[Comparison], claim: Claim) -> list[Comparison]:
    """Comparisons, with their table where those of two tables would read the same."""
    sources: dict[str, set[str]] = {}
    tables = {n: getattr(check, "table", "") for n, check in enumerate(claim.checks, 1)}
    for one in compared:
        sources.setdefault(one.what, set()).add(tables[one.check])
    return [
        replace(one, what=f"{tables[one.check]}, {one.what}") if len(sources[one.what]) > 1 else one
        for one in compared
    ]


def _by_setting(compared: Sequence[Comparison]) -> tuple[list[Comparison], list[Comparison]]:
    """Ours: those that need no scale, with the first of these that has numbers; the rest aside."""
    by_side = {side: [one for one in compared if one.side is side] for side in Side}
    scales = [by_side[side] for side in (Side.PAPER, Side.STAND_IN, Side.LAPTOP)]
    known = [any(one.known for one in scale) for scale in scales]
    lacking = [any(one.outcome is Outcome.LACKING for one in scale) for scale in scales]
    best = next((i for has in (known, lacking) for i in range(3) if has[i]), 0)
    rest = [one for scale in scales[best + 1 :] for one in scale if one.known]
    return [*by_side[Side.COMPUTED], *by_side[Side.MEASURED], *scales[best]], rest
