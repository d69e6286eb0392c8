"""A lower bound on epsilon from one run: Steinke, Nasr & Jagielski (2023, arXiv:2305.08846).

Each of ``m`` canaries is put into the training data or left out by a fair coin. Whoever sees what
training released guesses the coins of some of them. Differential privacy bounds how many guesses
can be right, for all canaries of one run together; more right guesses than that are evidence
against it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# Shares of the canaries that are guessed, the surest first. Several are tried, and the confidence
# is divided among them, since which is best depends on how much training gives away.
SHARES = (0.02, 0.05, 0.1, 0.25, 1.0)
_LARGEST = 50.0


@dataclass(frozen=True)
class Bound:
    """What guesses prove.

    Attributes:
        score: the name of the scores that the guesses go by.
        canaries: ``m``, in and out.
        guesses: ``r``, how many coins were guessed.
        correct: ``v``, how many of them rightly.
        epsilon: lower bound.
        confidence: of the bound, over the coins and the noise.
        delta: at which it holds.
    """

    score: str
    canaries: int
    guesses: int
    correct: int
    epsilon: float
    confidence: float
    delta: float

    def to_dict(self) -> dict[str, Any]:
        """For the record."""
        return asdict(self)


def lower_bound(
    scores: Mapping[str, Sequence[float] | Array],
    included: Sequence[bool] | npt.NDArray[np.bool_],
    *,
    delta: float,
    confidence: float,
) -> Bound:
    """The best lower bound that the scores allow.

    Args:
        scores: of each canary, by one or more rules; larger means rather included. Each of shape
            ``(m,)``.
        included: the coins, shape ``(m,)``.
        delta: of the guarantee that is put to the test.
        confidence: that the bound is no higher than the truth, for instance 0.95.

    Guarantee: if training is (epsilon, delta)-DP for adding or removing one canary, and the coins
    are fair and independent, then the bound exceeds epsilon with probability at most
    ``1 - confidence``. It is a bound from below: it can refute a guarantee and prove none.

    Raises:
        ValueError: for numbers outside their range, or scores that do not fit the coins.
    """
    coins = np.asarray(included, dtype=bool)
    if not scores:
        raise ValueError("got no scores; expected one rule or more")
    if not 0 < confidence < 1 or not 0 <= delta < 1:
        raise ValueError(f"got confidence={confidence}, delta={delta}; expected between 0 and 1")
    # Ties broken by position, which tells nothing of the coins.
    orders = {
        name: np.argsort(_points(rule, coins), kind="stable") for name, rule in scores.items()
    }
    m = coins.size
    sizes = sorted({max(1, int(share * m / 2)) for share in SHARES})
    # Both ends, or the top alone: a canary that was in and seldom sampled looks like one outside.
    attempts = [(k, k) for k in sizes if 2 * k <= m] + [(k, 0) for k in sizes]
    failure = (1 - confidence) / (len(attempts) * len(orders))
    bounds = []
    for name, order in orders.items():
        for top, bottom in attempts:
            low, high = order[:bottom], order[m - top :]
            correct = int((~coins[low]).sum() + coins[high].sum())
            guesses = top + bottom
            epsilon = epsilon_from_guesses(m, guesses, correct, delta, failure)
            bounds.append(Bound(name, m, guesses, correct, epsilon, confidence, delta))
    return max(bounds, key=lambda bound: bound.epsilon)


def _points(scores: Sequence[float] | Array, coins: npt.NDArray[np.bool_]) -> Array:
    points = np.asarray(scores, dtype=np.float64)
    if points.shape != coins.shape or points.ndim != 1 or not points.size:
        raise ValueError(
            f"{points.shape} scores for {coins.shape} coins; expected one each, at least one"
        )
    if np.isnan(points).any():
        raise ValueError("a canary's score is not a number; expected one for each canary")
    return points


def epsilon_from_guesses(m: int, r: int, v: int, delta: float, failure: float) -> float:
    """The largest epsilon that ``v`` right guesses of ``r`` refute at level ``failure``; else 0."""
    if p_value(m, r, v, 0.0, delta) > failure:
        return 0.0
    low, high = 0.0, 1.0
    while high < _LARGEST and p_value(m, r, v, high, delta) <= failure:
        low, high = high, 2 * high
    if high >= _LARGEST and p_value(m, r, v, _LARGEST, delta) <= failure:
        return _LARGEST
    for _ in range(40):
        middle = (low + high) / 2
        if p_value(m, r, v, middle, delta) <= failure:
            low = middle
        else:
            high = middle
    return low


def p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """At most how likely ``v`` or more of ``r`` guesses are right under (epsilon, delta)-DP.

    Steinke et al. (2023), Theorem 5.2 with the simplification of their appendix D: with
    ``W ~ Binomial(r, e^epsilon / (e^epsilon + 1))``,
    ``P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i`` over ``1 <= i <= v``.

    Args:
        m: canaries.
        r: guesses.
        v: right ones.
        epsilon: of the guarantee.
        delta: of the guarantee.
    """
    from scipy import stats

    if not 0 <= v <= r <= m:
        raise ValueError(f"{v} right of {r} guesses about {m} canaries; expected v <= r <= m")
    share = 1 / (1 + math.exp(-epsilon))
    beta = float(stats.binom.sf(v - 1, r, share))
    alpha = 0.0
    if delta > 0 and v > 0:
        below = np.cumsum(stats.binom.pmf(np.arange(v - 1, -1, -1), r, share))
        alpha = float((below / np.arange(1, v + 1)).max())
    return min(1.0, beta + 2 * m * delta * alpha)
