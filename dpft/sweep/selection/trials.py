"""The random number of runs of a private selection, and what the selection costs.

Liu & Talwar (2019) showed it for a geometric number; the price in Renyi DP is that of Papernot &
Steinke (2022, arXiv:2110.03620), Theorem 2 with ``eta = 1``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpft.privacy import keys
from dpft.privacy.accounting.rdp import RDPCurve


@dataclass(frozen=True)
class Trials:
    """The distribution of the number of runs ``K``: geometric, with ``P(K = 1) = 1 / mean``.

    Raises:
        ValueError: for a mean below 1, or one that is too large to run.
    """

    mean: float

    def __post_init__(self) -> None:
        if not 1 <= self.mean < 1e7:
            raise ValueError(f"got a mean of {self.mean} trials; expected at least 1")

    def draw(self, key: bytes) -> int:
        """Draw ``K`` from a secret key: who knew it would know more than was released."""
        if self.mean == 1:
            return 1
        u = (int.from_bytes(keys.derive(key, "trials")[:8], "big") >> 11) * 2.0**-53
        return 1 + math.floor(math.log1p(-u) / math.log1p(-1 / self.mean))

    def cost(self, run: RDPCurve) -> RDPCurve:
        """Return the Renyi DP of the whole selection; ``run``: a bound for every candidate's run.

        Guarantee: the released best run has this Renyi DP if each run has ``run`` and uses
        randomness of its own, candidates are drawn independently of the data, and neither ``K`` nor
        any other run is released. Every order of ``run`` proves one term, so the least is proven.
        """
        orders, total = run.orders, run.rdp.copy()  # of one run: nothing is selected
        if self.mean > 1:
            log_mean = math.log(self.mean)
            extra = 2 * ((1 - 1 / orders) * run.rdp + log_mean / orders).min()
            total += extra + log_mean / (orders - 1)
        # Renyi divergence never falls as its order grows, so higher orders bound lower ones.
        downwards = np.argsort(orders)[::-1]
        total[downwards] = np.minimum.accumulate(total[downwards])
        return RDPCurve(orders, total)


def at_most(curves: Sequence[RDPCurve]) -> RDPCurve:
    """Return a bound for all of several mechanisms: the largest at every order."""
    return RDPCurve(curves[0].orders, np.max([curve.rdp for curve in curves], axis=0))
