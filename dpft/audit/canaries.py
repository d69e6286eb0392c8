"""What every kind of canaries has: coins that decide which are in the run, and a score for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_STATE = ("total", "lowest", "highest")


class Canaries(ABC):
    """One kind of canaries; see `dpft.audit.gradients` and `dpft.audit.records`.

    Each step gives every canary a value, the larger the more what was released looks as if the
    canary were in it. Two rules make scores of them. Their *sum* is the one to go by where noise is
    fresh. Where noise is the same at several steps it grows in the sum as the signal does; their
    *range* is then free of it, while an included canary is in some steps and not in others.

    Args:
        count: ``m``.
        generator: tosses the coins; from a secret key.

    Attributes:
        included: whether each is in the run, shape (m,); secret.
        total: of the values of all steps, shape (m,).
        lowest: of them, shape (m,).
        highest: of them, shape (m,).
    """

    def __init__(self, count: int, generator: np.random.Generator) -> None:
        self.included: npt.NDArray[np.bool_] = generator.random(count) < 0.5
        self.total: Array = np.zeros(count)
        self.lowest: Array = np.full(count, np.inf)
        self.highest: Array = np.full(count, -np.inf)

    def __len__(self) -> int:
        return len(self.included)

    @abstractmethod
    def insert(self, slots: Sequence[int]) -> None:
        """Put the included canaries of the sampled slots into the step's sums, before noise.

        Args:
            slots: of this step's logical batch, from 0.
        """

    @abstractmethod
    def observe(self) -> None:
        """`add` what the step released, before the weights move."""

    def add(self, values: Array, summands: Array | None = None) -> None:
        """One step's value of each canary, shape (m,), and what of it is summed (default: all)."""
        self.total += values if summands is None else summands
        self.lowest = np.minimum(self.lowest, values)
        self.highest = np.maximum(self.highest, values)

    @property
    def scores(self) -> dict[str, Array]:
        """By both rules, each of shape (m,); without a step, all zero."""
        seen = self.highest >= self.lowest
        return {
            "sum": self.total,
            "range": np.subtract(self.highest, self.lowest, out=np.zeros(len(self)), where=seen),
        }

    def state(self) -> dict[str, Any]:
        """What going on needs; all else follows from the key.

        Noiseless: what was released less a gradient canary's value is the real records' sum.
        """
        return {name: getattr(self, name).tolist() for name in _STATE}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        for name in _STATE:
            setattr(self, name, np.array(state[name], dtype=np.float64))
