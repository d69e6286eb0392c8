"""A verdict for each claim, by the paper's own numbers and by ours."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from dpft.claims.benches import compare_benches
from dpft.claims.cells import compare_cells
from dpft.claims.comparison import Comparison, Outcome, Side
from dpft.claims.computed import compute
from dpft.claims.evidence import Evidence
from dpft.claims.judging import Judgement, judge
from dpft.claims.schema import (
    BenchCheck,
    CellsCheck,
    Claim,
    ComputedCheck,
    Untestable,
    VariantsCheck,
)
from dpft.claims.variants import compare_variants


@dataclass(frozen=True)
class Result:
    """A claim with all that is known of it.

    Attributes:
        claim: what is claimed.
        printed: comparisons of the paper's own numbers.
        ours: of ours, from each check those at the paper's setting, or at a laptop's where the
            paper's setting has no number.
        aside: of ours at a laptop's scale, from checks whose paper setting has numbers.
        reasons: why parts of the claim cannot be tested here.
        commands: what would give the numbers that lack.
    """

    claim: Claim
    printed: tuple[Comparison, ...]
    ours: tuple[Comparison, ...]
    aside: tuple[Comparison, ...]
    reasons: tuple[str, ...]
    commands: tuple[str, ...]

    @property
    def by_print(self) -> Judgement | None:
        """Whether the paper's own numbers bear it out; None where it prints none."""
        return judge(self.printed) if self.printed else None

    @property
    def by_us(self) -> Judgement:
        """What we found."""
        return judge(self.ours)

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
    printed: list[Comparison] = []
    ours: list[Comparison] = []
    aside: list[Comparison] = []
    reasons: list[str] = []
    commands: list[str] = []
    for number, check in enumerate(claim.checks, 1):
        where = f"{claim.name}, check {number}"
        match check:
            case CellsCheck():
                found = compare_cells(check, evidence, where)
                printed += [one for one in found if one.side is Side.PRINTED]
                commands += _of_table(check, found)
            case VariantsCheck():
                found, lacking = compare_variants(check, evidence, where)
                commands += lacking
            case BenchCheck():
                found = compare_benches(check, evidence)
                if any(one.outcome is Outcome.LACKING for one in found):
                    commands.append(check.command)
            case ComputedCheck():
                found = compute(check.function)
            case Untestable():
                found = []
                reasons.append(check.why)
        chosen, other = _chosen(found)
        ours += chosen
        aside += other
    reasons += [one.why for one in ours if one.outcome is Outcome.CANNOT]
    return Result(
        claim=claim,
        printed=tuple(printed),
        ours=tuple(ours),
        aside=tuple(aside),
        reasons=tuple(dict.fromkeys(reasons)),
        commands=tuple(dict.fromkeys(commands)),
    )


def _chosen(found: Sequence[Comparison]) -> tuple[list[Comparison], list[Comparison]]:
    """Ours: those that need no scale, with the paper's scale or, without numbers, the laptop's."""
    by_side = {side: [one for one in found if one.side is side] for side in Side}
    paper, laptop = by_side[Side.PAPER], by_side[Side.LAPTOP]
    free = [*by_side[Side.COMPUTED], *by_side[Side.MEASURED]]
    for test in (_known, _lacking):
        if any(map(test, paper)):
            return [*free, *paper], list(filter(_known, laptop))
        if any(map(test, laptop)):
            return [*free, *laptop], []
    return [*free, *paper], []


def _known(one: Comparison) -> bool:
    return one.known


def _lacking(one: Comparison) -> bool:
    return one.outcome is Outcome.LACKING


def _of_table(check: CellsCheck, found: Sequence[Comparison]) -> list[str]:
    """What would fill the cells that lack, a laptop's first."""
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
