"""All canaries of a run: slots beside the real units, and what they prove in the end."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpft.audit.bound import lower_bound
from dpft.audit.canaries import Canaries
from dpft.privacy.accounting.pld import LossDistribution, PrivacyProfile

if TYPE_CHECKING:
    from dpft.privacy import Mechanism

_START = 1.0  # the noise multiplier that the search begins with
# Where the profile is asked: close together where deltas are large, up to what guesses can refute.
_EPSILONS = np.concatenate([np.linspace(0, 8, 81), np.geomspace(8.2, 80, 40)])


class Auditor:
    """Slots that are sampled like records, behind the last real unit.

    An excluded canary's slot is sampled as well and adds nothing: the mechanism is the same
    whatever the coins, as the bound requires.

    Args:
        parts: kinds of canaries by name, in the order of their slots.
    """

    def __init__(self, parts: Mapping[str, Canaries]) -> None:
        self.parts = dict(parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def insert(self, slots: Sequence[int]) -> None:
        """Put the canaries of the sampled slots into the step's sums.

        Args:
            slots: from 0, over all kinds.
        """
        first = 0
        for part in self.parts.values():
            part.insert([slot - first for slot in slots if first <= slot < first + len(part)])
            first += len(part)

    def observe(self) -> None:
        """Look at what the step released, before the weights move."""
        for part in self.parts.values():
            part.observe()

    def state(self) -> dict[str, Any]:
        """What going on needs; noiseless, so that it belongs under ``private/`` alone."""
        return {name: part.state() for name, part in self.parts.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        for name, part in self.parts.items():
            part.restore(state[name])

    def result(self, mechanism: Mechanism, *, confidence: float, epsilon: float) -> dict[str, Any]:
        """The record's section.

        Args:
            mechanism: of the run: what it claims, and what it would claim with other noise.
            confidence: of all kinds' bounds together.
            epsilon: the least upper bound that the run claims, at the mechanism's delta.

        Returns:
            ``epsilon_lower``: the largest bound of any kind; ``refuted``: whether it exceeds
            ``epsilon``; ``delta``: at which both hold; ``parts``: each kind's
            `dpft.audit.bound.Bound`.
        """
        each = 1 - (1 - confidence) / len(self.parts)
        claim = functools.cache(functools.partial(_claim, mechanism))
        bounds = {
            name: lower_bound(part.scores, part.included, claim, start=_START, confidence=each)
            for name, part in self.parts.items()
        }
        lower = max(bound.epsilon for bound in bounds.values())
        return {
            "epsilon_lower": lower,
            "delta": mechanism.delta,
            "confidence": confidence,
            "refuted": lower > epsilon,
            "parts": {name: bound.to_dict() for name, bound in bounds.items()},
        }


def _claim(mechanism: Mechanism, noise_multiplier: float) -> tuple[float, PrivacyProfile]:
    """What the run would claim if all that a step releases had this noise multiplier."""
    if not mechanism.steps:
        return 0.0, PrivacyProfile(np.zeros(1), np.zeros(1))
    losses = LossDistribution(
        sampling_rate=mechanism.sampling_rate,
        noise_multiplier=noise_multiplier,
        steps=mechanism.steps,
    )
    return losses.epsilon(mechanism.delta), losses.profile(_EPSILONS)
