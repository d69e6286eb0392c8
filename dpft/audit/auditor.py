"""All canaries of a run: slots beside the real units, and what they prove in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpft.audit.bound import lower_bound
from dpft.audit.canaries import Canaries


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

    def result(self, *, delta: float, confidence: float, epsilon: float) -> dict[str, Any]:
        """The record's section.

        Args:
            delta: of the run.
            confidence: of all kinds' bounds together.
            epsilon: the least upper bound that the run claims.

        Returns:
            ``epsilon_lower``: the largest bound of any kind; ``refuted``: whether it exceeds
            ``epsilon``; ``parts``: each kind's `dpft.audit.bound.Bound`.
        """
        each = 1 - (1 - confidence) / len(self.parts)
        bounds = {
            name: lower_bound(part.scores, part.included, delta=delta, confidence=each)
            for name, part in self.parts.items()
        }
        lower = max(bound.epsilon for bound in bounds.values())
        return {
            "epsilon_lower": lower,
            "confidence": confidence,
            "refuted": lower > epsilon,
            "parts": {name: bound.to_dict() for name, bound in bounds.items()},
        }
