"""Mean ratings with 95% intervals: as printed in the paper, and with raters as clusters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpft.reproduce.study.ratings import Rating
from dpft.reproduce.study.sheet import Key

Z = 1.96
"""The 97.5% point of the normal distribution, as rounded in the asymptotic interval."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class RatingSummary:
    """Ratings of one system.

    Attributes:
        n: how many ratings.
        raters: how many people they are of.
        mean: of the ratings; None without any.
        deviation: their standard deviation, with ``n - 1``; None below two ratings.
        interval: 95%, asymptotic; None below two ratings.
        clustered: 95%, ratings of one rater taken as dependent; None below two raters.
    """

    system: str
    n: int
    raters: int
    mean: float | None = None
    deviation: float | None = None
    interval: Interval | None = None
    clustered: Interval | None = None


def summarise(ratings: Sequence[Rating], key: Key) -> list[RatingSummary]:
    """One summary for each system, in the key's order.

    A reply that several systems wrote counts for each of them.
    """
    by_system: dict[str, dict[str, list[int]]] = {system: {} for system in key.systems}
    for rating in ratings:
        for system in key.items[rating.item].systems:
            by_system[system].setdefault(rating.rater, []).append(rating.value)
    return [summary(system, by_rater) for system, by_rater in by_system.items()]


def summary(system: str, by_rater: Mapping[str, Sequence[int]]) -> RatingSummary:
    """Mean and intervals of one system's ratings, which come by rater."""
    values = [value for ratings in by_rater.values() for value in ratings]
    n, raters = len(values), len(by_rater)
    if not n:
        return RatingSummary(system, 0, 0)
    mean = sum(values) / n
    if n == 1:
        return RatingSummary(system, n, raters, mean)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    by_raters = clustered(mean, list(by_rater.values())) if raters > 1 else None
    interval = asymptotic(mean, deviation, n)
    return RatingSummary(system, n, raters, mean, deviation, interval, by_raters)


def asymptotic(mean: float, deviation: float, n: int) -> Interval:
    """``mean +- 1.96 s / sqrt(n)`` (Li et al. 2022, Table 3), as if ratings were independent."""
    half = Z * deviation / math.sqrt(n)
    return mean - half, mean + half


def clustered(mean: float, clusters: Sequence[Sequence[int]]) -> Interval:
    """The interval of a mean whose values depend on each other within a cluster.

    The variance of the mean is ``G / (G - 1)`` times the sum over clusters of the squared sums of
    deviations, over ``n^2`` (Liang and Zeger 1986); the quantile is Student's with ``G - 1``
    degrees of freedom, since raters are few. With one value a cluster and many of them, this is
    the asymptotic interval.
    """
    from scipy.stats import t

    n, count = sum(map(len, clusters)), len(clusters)
    squares = sum(sum(value - mean for value in cluster) ** 2 for cluster in clusters)
    half = float(t.ppf(0.975, count - 1)) * math.sqrt(count / (count - 1) * squares) / n
    return mean - half, mean + half
