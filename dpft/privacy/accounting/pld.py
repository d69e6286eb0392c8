"""Privacy loss distributions (Koskela et al. 2020; Doroshenko et al. 2022), by dp-accounting.

They give delta at every epsilon at once, for adding and for removing a record: the whole trade-off
between the two kinds of error of whoever asks whether a record was there. Discretisation is
pessimistic: what is returned is never below the truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_FINEST, _COARSEST = 1e-4, 1e-3  # of the grid of losses, in nats
_GRID = 0.02  # over the root of the steps: the composed error stays below 1% of epsilon


@dataclass(frozen=True)
class PrivacyProfile:
    """Upper bounds on delta: a mechanism is (``epsilons[i]``, ``deltas[i]``)-DP for every ``i``.

    Attributes:
        epsilons: ascending, from 0; shape (n,).
        deltas: between 0 and 1; shape (n,).
    """

    epsilons: Array
    deltas: Array

    def __post_init__(self) -> None:
        if self.epsilons.shape != self.deltas.shape or self.epsilons.ndim != 1:
            raise ValueError(
                f"{self.epsilons.shape} epsilons for {self.deltas.shape} deltas; expected one each"
            )
        inside = (self.epsilons >= 0) & (self.deltas >= 0) & (self.deltas <= 1)
        if not self.epsilons.size or not inside.all():
            raise ValueError("expected epsilons from 0 and deltas between 0 and 1, at least one")


class LossDistribution:
    """``steps`` Poisson-subsampled Gaussian mechanisms, neighbours by adding or removing a record.

    Args:
        sampling_rate: ``q``.
        noise_multiplier: ``sigma``, above 0.
        steps: at least 1.
    """

    def __init__(self, *, sampling_rate: float, noise_multiplier: float, steps: int) -> None:
        from dp_accounting.pld import privacy_loss_distribution

        if not (0 < sampling_rate <= 1 and noise_multiplier > 0 and steps >= 1):
            raise ValueError(
                f"sampling_rate is {sampling_rate}, noise_multiplier {noise_multiplier}, steps "
                f"{steps}; expected a rate in (0, 1], noise above 0 and at least one step"
            )
        one = privacy_loss_distribution.from_gaussian_mechanism(
            noise_multiplier,
            sampling_prob=sampling_rate,
            value_discretization_interval=float(
                np.clip(_GRID / math.sqrt(steps), _FINEST, _COARSEST)
            ),
        )
        self._composed = one.self_compose(steps)

    def epsilon(self, delta: float) -> float:
        """The least epsilon at `delta`; infinite where none was found."""
        return float(self._composed.get_epsilon_for_delta(delta))

    def profile(self, epsilons: Array) -> PrivacyProfile:
        """Delta at each of `epsilons`, which ascend."""
        deltas = np.asarray(self._composed.get_delta_for_epsilon(list(epsilons)), dtype=np.float64)
        return PrivacyProfile(epsilons, np.clip(deltas, 0.0, 1.0))
