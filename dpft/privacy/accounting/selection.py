"""What it costs to run several private trainings and keep the best: private selection.

The number of runs ``K`` is drawn at random and kept secret; each run is private on its own; only
the best one is released. Then the whole costs little more than one run, however many were made:
Liu & Talwar (2019) showed it for a geometric ``K``, Papernot & Steinke (2022, arXiv:2110.03620)
for the truncated negative binomial family around it and for a Poisson ``K``, in Renyi DP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import optimize, special

from dpft.privacy import keys
from dpft.privacy.accounting.rdp import Array, RDPCurve

# A number of trials this unlikely to be exceeded ends the search of `Trials.draw`.
_TAIL = 1e-15
_MOST_TRIALS = 10**7


@dataclass(frozen=True)
class Trials:
    """The distribution of the number of runs.

    Attributes:
        mean: ``E[K]``; at least 1, any positive number for a Poisson distribution.
        shape: ``eta`` of the truncated negative binomial distribution, above -1: 1 is geometric
            (Liu & Talwar 2019), 0 logarithmic; infinity: Poisson, where ``K`` may be zero and
            nothing is released. Larger means more even numbers of runs, and a higher price.

    Raises:
        ValueError: for a mean or a shape outside its range.
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        if not self.shape > -1:
            raise ValueError(
                f"got shape={self.shape}; expected above -1: 1 for geometric, 0 for logarithmic, "
                "inf for Poisson"
            )
        if self.poisson and not 0 < self.mean < _MOST_TRIALS:
            raise ValueError(f"got mean={self.mean} trials; expected above 0")
        if not self.poisson and not 1 <= self.mean < _MOST_TRIALS:
            raise ValueError(
                f"got mean={self.mean} trials; expected at least 1, since at least one run is made"
            )
        if not self.poisson:
            try:
                _ = self.gamma
            except (OverflowError, ValueError) as error:
                raise ValueError(
                    f"got mean={self.mean} and shape={self.shape}, whose gamma no number can hold; "
                    "expected fewer trials, or a larger shape"
                ) from error

    @property
    def poisson(self) -> bool:
        """Whether ``K`` is Poisson."""
        return math.isinf(self.shape)

    @cached_property
    def gamma(self) -> float:
        """``gamma`` of the truncated negative binomial: its mean determines it (Definition 1)."""
        if self.poisson:
            raise ValueError("a Poisson number of trials has no gamma")
        if self.mean == 1:
            return 1.0

        def excess(log_gamma: float) -> float:
            return math.log(_mean(self.shape, log_gamma)) - math.log(self.mean)

        low = -1.0
        while excess(low) < 0:
            low *= 2
        return math.exp(float(optimize.brentq(excess, low, -1e-15, xtol=1e-14)))

    def log_probability(self, trials: int) -> float:
        """``log P(K = trials)``."""
        k, eta = trials, self.shape
        if self.poisson:
            return k * math.log(self.mean) - self.mean - math.lgamma(k + 1)
        if k < 1:
            return -math.inf
        if self.mean == 1:
            return 0.0 if k == 1 else -math.inf
        gamma = self.gamma
        tail = k * math.log1p(-gamma)
        if eta == 0:
            return tail - math.log(k) - math.log(-math.log(gamma))
        # Gamma(k + eta) / (Gamma(eta) k!) / (gamma^-eta - 1); both factors change sign with eta.
        return float(
            tail
            + special.gammaln(k + eta)
            - special.gammaln(eta)
            - math.lgamma(k + 1)
            - math.log(abs(math.expm1(-eta * math.log(gamma))))
        )

    def draw(self, key: bytes) -> int:
        """The number of runs, from a secret key: who knew it would know more than was released."""
        u = int.from_bytes(keys.derive(key, "trials")[:8], "big") * 2.0**-64
        k = 0 if self.poisson else 1
        below = 0.0
        while k < _MOST_TRIALS:
            probability = math.exp(self.log_probability(k))
            below += probability
            if u < below or (k > self.mean and probability < _TAIL):
                return k
            k += 1
        return k

    def cost(self, run: RDPCurve) -> RDPCurve:
        """Renyi DP of the whole selection.

        Args:
            run: of one whole run (`run_curve`), a bound for every candidate.

        Guarantee: the released best run has this Renyi DP if each run has ``run`` and uses
        randomness of its own, candidates are drawn independently of the data, and neither ``K`` nor
        any other run is released. Theorem 2 (truncated negative binomial) and Theorem 6 (Poisson)
        of Papernot & Steinke; every order of ``run`` proves one term, so the least is proven.
        """
        orders, rdp = run.orders, run.rdp
        with np.errstate(invalid="ignore"):
            if self.poisson:
                extra = self.mean * _delta(run, np.log1p(1 / (orders - 1)))
                best = (orders - 1) * (rdp + extra) + math.log(self.mean)
                # Theorem 6 bounds the outputs of a run. To release nothing is an outcome too, as
                # likely with one data set as with the other: it adds P(K = 0) to the moment.
                total = np.logaddexp(best, -self.mean) / (orders - 1)
            else:
                price = (1 - 1 / orders) * rdp
                extra = (1 + self.shape) * (price - math.log(self.gamma) / orders).min()
                total = rdp + extra + math.log(self.mean) / (orders - 1)
        if not self.poisson and self.mean == 1:
            total = rdp  # exactly one run: nothing is selected
        total = np.where(np.isnan(total), np.inf, total)
        # Renyi divergence never falls as its order grows, so higher orders bound lower ones.
        downwards = np.argsort(orders)[::-1]
        total[downwards] = np.minimum.accumulate(total[downwards])
        return RDPCurve(orders, np.maximum(total, 0.0))


def at_most(curves: list[RDPCurve]) -> RDPCurve:
    """A bound for all of several mechanisms: the largest at every order.

    Raises:
        ValueError: if there are none, or they are known at different orders.
    """
    if not curves:
        raise ValueError("got no curves; expected one for each candidate")
    orders = curves[0].orders
    if any(not np.array_equal(curve.orders, orders) for curve in curves):
        raise ValueError("curves are known at different orders; expected the same ones")
    return RDPCurve(orders, np.max([curve.rdp for curve in curves], axis=0))


def _mean(eta: float, log_gamma: float) -> float:
    """``E[K]`` of the truncated negative binomial (Definition 1)."""
    ratio = math.expm1(-log_gamma)  # (1 - gamma) / gamma
    if eta == 0:
        return ratio / -log_gamma
    return eta * ratio / -math.expm1(eta * log_gamma)


def _delta(run: RDPCurve, epsilon: Array) -> Array:
    """The least proven delta of ``run`` at each epsilon, shape (E,); see `RDPCurve.epsilon`."""
    orders = run.orders[:, None]
    log_delta = (orders - 1) * (run.rdp[:, None] + np.log1p(-1 / orders) - epsilon) - np.log(orders)
    return np.asarray(np.exp(np.minimum(log_delta.min(axis=0), 0.0)))
