"""What every kind of canaries has: coins that decide which are in the run, and a score for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class Canaries(ABC):
    """One kind of canaries; see `dpft.audit.gradients` and `dpft.audit.records`.

    Args:
        count: ``m``.
        generator: tosses the coins; from a secret key.

    Attributes:
        included: whether each is in the run, shape (m,); secret.
        scores: the larger, the more what was released looks as if it were, shape (m,).
    """

    def __init__(self, count: int, generator: np.random.Generator) -> None:
        self.included: npt.NDArray[np.bool_] = generator.random(count) < 0.5
        self.scores: npt.NDArray[np.float64] = np.zeros(count)

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
        """Add to the scores what the step released, before the weights move."""

    def state(self) -> dict[str, Any]:
        """What going on needs; all but the scores follows from the key.

        Noiseless: what was released less a gradient canary's score is the real records' sum.
        """
        return {"scores": self.scores.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.scores = np.array(state["scores"], dtype=np.float64)
