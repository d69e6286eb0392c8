"""The random number of runs of a private selection, and what the selection costs.

Liu & Talwar (2019) showed it for a geometric number, Papernot & Steinke (2022, arXiv:2110.03620)
for the truncated negative binomial family around it, in Renyi DP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import optimize, special

from dpft.privacy import keys
from dpft.privacy.accounting.rdp import RDPCurve

# A number of trials this unlikely to be exceeded ends the search of `Trials.draw`.
_TAIL = 1e-15
_MOST_TRIALS = 10**7


@dataclass(frozen=True)
class Trials:
    """The distribution of the number of runs ``K``: truncated negative binomial.

    Attributes:
        mean: ``E[K]``, at least 1.
        shape: ``eta``, above -1: 1 is geometric, 0 logarithmic. Larger means more even numbers of
            runs, and a higher price.

    Raises:
        ValueError: for a mean or a shape outside its range.
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        if not -1 < self.shape < math.inf or not 1 <= self.mean < _MOST_TRIALS:
            raise ValueError(
                f"got mean={self.mean} and shape={self.shape}; expected a mean of at least 1, and "
                "a finite shape above -1: 1 for geometric, 0 for logarithmic"
            )
        try:
            _ = self.gamma
        except (OverflowError, ValueError) as error:
            raise ValueError(
                f"got mean={self.mean} and shape={self.shape}, whose gamma no number can hold; "
                "expected fewer trials, or a larger shape"
            ) from error

    @cached_property
    def gamma(self) -> float:
        """``gamma``, which the mean determines (Definition 1)."""
        if self.mean == 1:
            return 1.0

        def excess(log_gamma: float) -> float:
            ratio = math.expm1(-log_gamma)  # (1 - gamma) / gamma
            if self.shape == 0:
                mean = ratio / -log_gamma
            else:
                mean = self.shape * ratio / -math.expm1(self.shape * log_gamma)
            return math.log(mean) - math.log(self.mean)

        low = -1.0
        while excess(low) < 0:
            low *= 2
        return math.exp(float(optimize.brentq(excess, low, -1e-15, xtol=1e-14)))

    def log_probability(self, trials: int) -> float:
        """Return ``log P(K = trials)``."""
        k, eta = trials, self.shape
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
        """Draw ``K`` from a secret key: who knew it would know more than was released."""
        u = int.from_bytes(keys.derive(key, "trials")[:8], "big") * 2.0**-64
        k, below = 0, 0.0
        while k < _MOST_TRIALS:
            k += 1
            probability = math.exp(self.log_probability(k))
            below += probability
            if u < below or (k > self.mean and probability < _TAIL):
                break
        return k

    def cost(self, run: RDPCurve) -> RDPCurve:
        """Return the Renyi DP of the whole selection.

        Guarantee: the released best run has this Renyi DP if each run has ``run`` and uses
        randomness of its own, candidates are drawn independently of the data, and neither ``K`` nor
        any other run is released. Theorem 2 of Papernot & Steinke; every order of ``run`` proves
        one term, so the least is proven.
        """
        orders, total = run.orders, run.rdp.copy()  # of one run: nothing is selected
        if self.mean > 1:
            with np.errstate(invalid="ignore"):
                price = (1 - 1 / orders) * run.rdp
                extra = (1 + self.shape) * (price - math.log(self.gamma) / orders).min()
                total += extra + math.log(self.mean) / (orders - 1)
        total = np.where(np.isnan(total), np.inf, total)
        # Renyi divergence never falls as its order grows, so higher orders bound lower ones.
        downwards = np.argsort(orders)[::-1]
        total[downwards] = np.minimum.accumulate(total[downwards])
        return RDPCurve(orders, np.maximum(total, 0.0))


def at_most(curves: Sequence[RDPCurve]) -> RDPCurve:
    """Return a bound for all of several mechanisms: the largest at every order."""
    return RDPCurve(curves[0].orders, np.max([curve.rdp for curve in curves], axis=0))
