"""Whether the rows come in the paper's order: the claim that survives another scale."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpft.reproduce.papers.schema import Column
from dpft.reproduce.tables.verdicts import at_least, tolerance

if TYPE_CHECKING:
    from dpft.reproduce.tables.cells import Cell

SHOWN = 3


@dataclass(frozen=True)
class Reversed:
    """Two rows that the paper orders clearly and we order the other way.

    ``higher`` has the higher printed number, and its numbers come first.
    """

    higher: str
    lower: str
    printed: tuple[float, float]
    ours: tuple[float, float]


@dataclass(frozen=True)
class Agreement:
    """Order of the rows of one column.

    Attributes:
        rows: how many have both numbers.
        tau: Kendall's tau-b; None where one side is constant.
        clear: pairs that the paper orders clearly.
        same: how many of them we order the same way.
        close: how many of them ours does not tell apart.
        reversed: those of them that we order the other way, by printed distance.
    """

    column: Column
    rows: int
    tau: float | None
    clear: int
    same: int
    close: int
    reversed: tuple[Reversed, ...]


def agreement(column: Column, rows: Sequence[tuple[str, Cell]]) -> Agreement | None:
    """Compare the order of the rows that have both numbers; None for fewer than two.

    A pair is ordered clearly if its printed numbers lie further apart than the tolerance of a match
    (`dpft.reproduce.tables.verdicts`) for either; ours tells it apart by the same rule, with our
    deviations, and by no less than two standard errors where the score is a share of the scored
    records.
    """
    both = []
    for name, cell in rows:
        if cell.printed is None or cell.ours is None:
            continue
        spread = None if cell.deviation is None else at_least(cell.deviation, cell.ours)
        apart = tolerance(cell.printed, cell.printed_spread, column.decimals)
        ours_apart = tolerance(cell.ours, spread, column.decimals)
        both.append((name, cell.printed, cell.ours, apart, ours_apart, cell.sampling))
    if len(both) < 2:
        return None
    from scipy.stats import kendalltau

    printed, ours = [x[1] for x in both], [x[2] for x in both]
    tau = math.nan
    if len(set(printed)) > 1 and len(set(ours)) > 1:
        tau = float(kendalltau(printed, ours).statistic)
    same, close, against = 0, 0, []
    for one, other in itertools.combinations(both, 2):
        high, low = (one, other) if one[1] > other[1] else (other, one)
        if high[1] - low[1] <= max(high[3], low[3]):
            continue
        ahead, allowed = high[2] - low[2], max(high[4], low[4], 2 * math.hypot(high[5], low[5]))
        if ahead > allowed:
            same += 1
        elif ahead >= -allowed:
            close += 1
        else:
            against.append(Reversed(high[0], low[0], (high[1], low[1]), (high[2], low[2])))
    against.sort(key=lambda pair: pair.printed[1] - pair.printed[0])
    return Agreement(
        column=column,
        rows=len(both),
        tau=None if math.isnan(tau) else tau,
        clear=same + close + len(against),
        same=same,
        close=close,
        reversed=tuple(against),
    )
