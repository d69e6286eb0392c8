"""A verdict for each claim, by the paper's own numbers and by ours."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from dpft.reproduce.claims.benches import bench_commands, compare_benches
from dpft.reproduce.claims.cells import compare_cells
from dpft.reproduce.claims.comparison import Comparison, Outcome, Side
from dpft.reproduce.claims.computed import compute
from dpft.reproduce.claims.evidence import Evidence
from dpft.reproduce.claims.judging import Judgement, judge
from dpft.reproduce.claims.schema import (
    BenchCheck,
    CellsCheck,
    Claim,
    ComputedCheck,
    Untestable,
    VariantsCheck,
)
from dpft.reproduce.claims.variants import compare_variants


@dataclass(frozen=True)
class Result:
    """A claim with all that is known of it.

    Attributes:
        claim: what is claimed.
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
        return tuple(one for part in self.printed_by_check for one in part)

    @property
    def ours(self) -> tuple[Comparison, ...]:
        """Those of every check."""
        return tuple(one for part in self.ours_by_check for one in part)

    @property
    def by_print(self) -> Judgement | None:
        """Whether the paper's own numbers bear it out; None where it prints none."""
        return judge(self.printed_by_check) if self.printed else None

    @property
    def by_us(self) -> Judgement:
        """What we found."""
        return judge(self.ours_by_check)

    @property
    def sides(self) -> tuple[Side, ...]:
        """Where our numbers are from."""
        present = {one.side for one in self.ours if one.known}
        return tuple(side for side in Side if side in present)


def evaluate(claim: Claim, evidence: Evidence) -> Result:
    """Make every comparison of a claim.

    Raises:
        ClaimError: for a check that names what is not there.
    """
    printed: list[tuple[Comparison, ...]] = []
    ours: list[tuple[Comparison, ...]] = []
    aside: list[Comparison] = []
    reasons: list[str] = []
    commands: list[str] = []
    for number, check in enumerate(claim.checks, 1):
        where = f"{claim.name}, check {number}"
        match check:
            case CellsCheck():
                found = compare_cells(check, evidence, where)
                printed.append(tuple(one for one in found if one.side is Side.PRINTED))
                commands += _of_table(check, found)
            case VariantsCheck():
                found, lacking = compare_variants(check, evidence, where)
                commands += lacking
            case BenchCheck():
                found = compare_benches(check, evidence)
                commands += bench_commands(check, found)
            case ComputedCheck():
                found = compute(check.function)
            case Untestable():
                found = []
                reasons.append(check.why)
        chosen, other = _chosen(found)
        ours.append(tuple(chosen))
        aside += other
        reasons += [one.why for one in chosen if one.outcome is Outcome.CANNOT]
    return Result(
        claim=claim,
        printed_by_check=tuple(filter(None, printed)),
        ours_by_check=tuple(filter(None, ours)),
        aside=tuple(aside),
        reasons=tuple(dict.fromkeys(reasons)),
        commands=tuple(dict.fromkeys(commands)),
    )


def _chosen(found: Sequence[Comparison]) -> tuple[list[Comparison], list[Comparison]]:
    """Ours: those that need no scale, with the first of these that has numbers; the rest aside."""
    by_side = {side: [one for one in found if one.side is side] for side in Side}
    free = [*by_side[Side.COMPUTED], *by_side[Side.MEASURED]]
    scales = [by_side[side] for side in (Side.PAPER, Side.STAND_IN, Side.LAPTOP)]
    for test in (_known, _lacking):
        for place, scale in enumerate(scales):
            if any(map(test, scale)):
                others = [one for other in scales[place + 1 :] for one in other]
                return [*free, *scale], list(filter(_known, others))
    return [*free, *scales[0]], []


def _known(one: Comparison) -> bool:
    return one.known


def _lacking(one: Comparison) -> bool:
    return one.outcome is Outcome.LACKING


def _of_table(check: CellsCheck, found: Sequence[Comparison]) -> list[str]:
    """What would fill the missing cells, a laptop's first."""
    lacking = {one.side for one in found if one.outcome is Outcome.LACKING}
    if not lacking & {Side.PAPER, Side.LAPTOP}:
        return []
    words = {Side.LAPTOP: ["scale=laptop"], Side.PAPER: []}
    verb = "figure" if check.figure else "table"
    return [
        shlex.join(["dpft", verb, check.table, *words[side], "--run"])
        for side in (Side.LAPTOP, Side.PAPER)
        if side in lacking
    ]
