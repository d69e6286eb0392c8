"""Privacy loss distributions (Koskela et al. 2020; Doroshenko et al. 2022), by dp-accounting.

They give delta at every epsilon at once, for adding and for removing a record: the whole trade-off
between the two kinds of error of an adversary who tests for a record. Discretisation is
pessimistic: no value is below the truth.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from dpft.privacy.accounting.rdp import Array, epsilon_rdp

MAX_EPSILON = 500.0  # by Renyi DP; beyond it no guarantee is left to refine
_ROUNDING = 1000 * float(np.finfo(np.float64).eps)  # of delta, a step
# The grid of losses, in nats: at most this, less for many steps, whose errors add up like their
# root, and for a small epsilon. It keeps epsilon within 1% (or 0.002) of that of a finer one
# (tests/privacy/test_pld.py).
_COARSEST, _OVER_ROOT_OF_STEPS, _OVER_EPSILON = 1e-3, 0.06, 1 / 1000
# No finer than this share of the deviation of all steps' losses, which is a million points. Only an
# epsilon far below that deviation, where delta alone nearly allows the run, asks for more: minutes.
_FINEST = 2e-5


@dataclass(frozen=True)
class PrivacyProfile:
    """Upper bounds on delta: a mechanism is (``epsilons[i]``, ``deltas[i]``)-DP for every ``i``.

    Attributes:
        epsilons: ascending, from 0; shape (n,).
        deltas: between 0 and 1; shape (n,).
    """

    epsilons: Array
    deltas: Array

    def found(self, false_alarms: float) -> float:
        """Return how often, at most, any test says that a record was used, where it was.

        Kairouz et al. (2015, Theorem 2.1) for one pair of epsilon and delta. The least over all
        pairs is one minus the trade-off function of Dong et al. (2022).

        Args:
            false_alarms: how often the test says so where the record was not used; from 0 to 1.
        """
        powers = np.exp(self.epsilons)
        bounds = self.deltas + powers * false_alarms, 1 - (1 - self.deltas - false_alarms) / powers
        return float(np.clip(np.minimum(*bounds).min(), false_alarms, 1.0))

    def right(self) -> float:
        """Return how likely, at most, any guess on whether a record was used is right.

        It was used with probability one half. The bound is one half plus half of the total
        variation distance, which the same theorem bounds.
        """
        # As 1 - 2 (1 - delta) / (e^epsilon + 1), which no large epsilon overflows.
        distances = 1 - 2 * (1 - self.deltas) / (np.exp(self.epsilons) + 1)
        return float(0.5 + np.clip(distances, 0.0, 1.0).min() / 2)


class LossDistribution:
    """``steps`` Poisson-subsampled Gaussian mechanisms, neighbours by adding or removing a record.

    Args:
        sampling_rate: ``q``.
        noise_multiplier: ``sigma``, above 0.
        steps: at least 1.
        overflow: where batches are cut, see `dpft.privacy.accounting.rdp`.
        grid: distance of neighbouring losses, in nats, at most; many steps make it less.
    """

    def __init__(
        self,
        *,
        sampling_rate: float,
        noise_multiplier: float,
        steps: int,
        overflow: float = 0.0,
        grid: float = _COARSEST,
    ) -> None:
        from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

        how = {
            "sampling_prob": sampling_rate,
            "value_discretization_interval": min(grid, _OVER_ROOT_OF_STEPS / math.sqrt(steps)),
        }
        one = from_gaussian_mechanism(noise_multiplier, **how)
        if overflow:
            half = from_gaussian_mechanism(noise_multiplier / 2, **how)
            one = half.compute_mixture(one, overflow)
        self._composed = one.self_compose(steps)

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon at ``delta``; infinite where none was found."""
        return float(self._composed.get_epsilon_for_delta(delta))

    def profile(self, epsilons: Array) -> PrivacyProfile:
        """Return delta at each of ``epsilons``, which ascend."""
        deltas = np.asarray(self._composed.get_delta_for_epsilon(list(epsilons)), dtype=np.float64)
        return PrivacyProfile(epsilons, np.clip(deltas, 0.0, 1.0))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon of mu-GDP at delta: the inverse of Dong et al. (2019), Corollary 1."""
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    if mu > 1e6:  # beyond 1e11, where the library's digits cancel
        return math.inf
    with np.errstate(divide="ignore"):  # of a logarithm of zero, for an epsilon of zero
        return float(get_epsilon_gaussian(1 / mu, delta))


def epsilon_pld(
    *,
    sampling_rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    overflow: float = 0.0,
) -> float | None:
    """Return epsilon by numerical composition: an upper bound in both directions.

    Returns:
        None where Renyi DP gives more than `MAX_EPSILON`, where delta is no larger than the
        rounding of so many steps, or where the library gives no number.

    Raises:
        ValueError: if an argument is outside its range.
    """
    return _epsilon(sampling_rate, noise_multiplier, steps, delta, overflow)


# Within the process alone: what a run states is never read from a file that may have been changed.
@functools.lru_cache(1024)
def _epsilon(
    sampling_rate: float, noise_multiplier: float, steps: int, delta: float, overflow: float
) -> float | None:
    step = {"sampling_rate": sampling_rate, "noise_multiplier": noise_multiplier}
    step["overflow"] = overflow
    bound = epsilon_rdp(**step, steps=steps, delta=delta)
    if bound == 0:
        return bound
    if not bound <= MAX_EPSILON or delta < _ROUNDING * steps:
        return None
    if sampling_rate == 1 and not overflow:
        return gaussian_epsilon(math.sqrt(steps) / noise_multiplier, delta)
    deviation = sampling_rate * math.sqrt(steps) / noise_multiplier
    grid = min(_COARSEST, max(bound * _OVER_EPSILON, deviation * _FINEST))
    try:
        epsilon = LossDistribution(**step, steps=int(steps), grid=grid).epsilon(delta)
    except (ArithmeticError, MemoryError, ValueError):  # the library's; Renyi DP is a bound too
        return None
    return max(0.0, epsilon) if math.isfinite(epsilon) else None
