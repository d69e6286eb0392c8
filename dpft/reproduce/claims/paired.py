"""What the same seeds of two settings say of their difference, defined in one place.

**Interval.** With ``d_1 .. d_n`` the differences over the seeds that both settings have, ``m``
their mean and ``s`` their deviation (``n - 1`` in the denominator), the 95% interval of Student's t
is ``m +- t(0.975, n - 1) s / sqrt(n)``. It is of other seeds on the same scored records. Shares of
few records, as accuracies are, have an error that no seed lessens: the half-width is two standard
errors of it at least (``allowed``, from `dpft.reproduce.claims.comparison.of_records`).

**Power.** The smallest true difference whose interval excludes zero in four of five repetitions
with as many seeds: with ``r = difference sqrt(n) / s``, the noncentral t of ``r`` exceeds
``t(0.975, n - 1)`` with probability 0.8. Where the error of the scored records is larger, it is
2.84 of their standard errors: 2 for the interval, 0.84 for four of five. The deviation is that of
the seeds at hand, and two or three estimate it badly. By the same reckoning, two settings that are
equal are found as good in four of five repetitions if the equivalence margin is as large as that
difference, or for ``on_par``, which has two sides, as large as the one of nine in ten: in four of
five or more, since the sides may fail together (with three seeds in 85 of 100).

**What a pair shares** is what its seed decides: new weights (heads, adapters), and the batches of
runs without privacy. Batches and noise of private runs come from keys of their own. Where a seed
decides nothing, pairs are no closer than any two runs, and the interval holds all the same: it is
wider than one without pairs would be.

**Outcomes.** With ``low`` to ``high`` the interval, the first number better by a positive amount,
and ``E`` the equivalence margin of the claim:

=========== ====================== ======================== ==============
expected    holds                  fails                    not told apart
=========== ====================== ======================== ==============
above, best ``low > 0``            ``high < 0``             else
not_below   ``low >= -E``          ``high < -E``            else
on_par      inside ``-E`` to ``E`` outside ``-E`` to ``E``  else
apart       inside the range       outside the range        else
=========== ====================== ======================== ==============
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from dpft.config.errors import ConfigError

CONFIDENCE = 0.95
POWER = 0.8


@dataclass(frozen=True)
class Paired:
    """The difference of two settings over the seeds that both have.

    Attributes:
        first: mean of the first over these seeds.
        second: mean of the second.
        difference: mean of first less second, positive where the first is better.
        low: the interval's lower end.
        high: its upper end.
        seeds: how many.
        detectable: the smallest difference that as many seeds would have shown, see above.
        two_sided: the smallest margin for which they would have shown equal settings to be on par.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    seeds: int
    detectable: float
    two_sided: float

    def outside(self, ends: tuple[float | None, float | None]) -> bool | None:
        """Whether the interval lies outside a range; None where it holds an end of it.

        An end of None is no bound.
        """
        least = -math.inf if ends[0] is None else ends[0]
        most = math.inf if ends[1] is None else ends[1]
        if least <= self.low and self.high <= most:
            return False
        return True if self.high < least or self.low > most else None

    def needed(self, kind: str) -> float:
        """The smallest difference, or equivalence margin, that would have done for that kind."""
        return self.two_sided if kind == "on_par" else self.detectable

    def text(self, decimals: int, kind: str = "above") -> str:
        """``+1.20, 95% interval +0.30 to +2.10 over 3 seeds``, and what they would have shown."""
        mean, low, high = (f"{x:+.{decimals}f}" for x in (self.difference, self.low, self.high))
        shown = f"{self.needed(kind):.{decimals}f}"
        power = f"{shown} would have been shown with 80% power"
        if kind in ("not_below", "on_par"):
            least = "at least 80%" if kind == "on_par" else "80%"
            found = f"equal ones would have been found as good with {least} power"
            power = f"{found} by {shown} of margin"
        return f"{mean}, 95% interval {low} to {high} over {self.seeds} seeds; {power}"


def paired(
    first: Mapping[int, float],
    second: Mapping[int, float],
    *,
    sign: int = 1,
    allowed: float = 0.0,
) -> Paired | None:
    """The paired difference by seed; None where fewer than two seeds are of both.

    Args:
        first: score by seed.
        second: the same.
        sign: 1 where more is better, -1 where less is.
        allowed: the least half-width of the interval, two standard errors of the scored records.
    """
    seeds = sorted({*first} & {*second})
    if len(seeds) < 2:
        return None
    differences = [sign * (first[seed] - second[seed]) for seed in seeds]
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    half = max(half_width(deviation, len(seeds)), allowed)
    return Paired(
        first=statistics.fmean(first[seed] for seed in seeds),
        second=statistics.fmean(second[seed] for seed in seeds),
        difference=mean,
        low=mean - half,
        high=mean + half,
        seeds=len(seeds),
        detectable=detectable(deviation, len(seeds), allowed=allowed),
        two_sided=detectable(deviation, len(seeds), (1 + POWER) / 2, allowed),
    )


def half_width(deviation: float, seeds: int) -> float:
    """Of the interval of a mean of so many differences with this deviation.

    Raises:
        ConfigError: for fewer than two.
    """
    return _critical(seeds) * deviation / math.sqrt(seeds)


def detectable(deviation: float, seeds: int, power: float = POWER, allowed: float = 0.0) -> float:
    """The smallest true difference that the interval shows with that probability.

    Raises:
        ConfigError: for fewer than two seeds.
    """
    from scipy.special import nctdtrinc

    # An interval on the wrong side of zero is left out: at this power it has no weight.
    shift = float(nctdtrinc(seeds - 1, 1 - power, _critical(seeds)))
    of_records = allowed * (1 + NormalDist().inv_cdf(power) / 2)
    return max(shift * deviation / math.sqrt(seeds), of_records)


def _critical(seeds: int) -> float:
    from scipy.special import stdtrit

    if seeds < 2:
        raise ConfigError(f"got {seeds} seeds; expected two at least: type --seeds 0,1,2")
    return float(stdtrit(seeds - 1, (1 + CONFIDENCE) / 2))
