"""What the privacy core knows of other processes: how many there are, and how sums are added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Cohort(Protocol):
    """The processes that train one model, each on its share of every logical batch.

    Attributes:
        rank: of this process, from 0.
        size: how many there are.
    """

    rank: int
    size: int

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, the same bits on each."""
