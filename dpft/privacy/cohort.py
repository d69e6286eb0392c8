"""What the privacy core knows of other processes: how many there are, and how sums are added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn


class Cohort(Protocol):
    """The processes that train one model, each on its share of every logical batch.

    Where parameters are *sharded*, each rank holds a part of every parameter, and a layer's whole
    parameters exist while it runs only. All ranks then go through forward and backward together,
    microbatch by microbatch, and hand over each sum as soon as it is formed.

    Attributes:
        rank: of this process, from 0.
        size: how many there are.
        sharded: whether each rank holds a part of every parameter, and not a copy.
    """

    rank: int
    size: int
    sharded: bool

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, the same bits on each."""

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank."""

    def whole(self, tensor: Tensor) -> Tensor:
        """What a divided tensor is when its parts are put together; every rank must ask."""

    def own_slice(self, whole: Tensor) -> tuple[Tensor, int]:
        """Of a sharded tensor, flattened, the part that this rank holds.

        Returns:
            A view ``(n,)`` of the part, and where it begins in the whole.
        """

    def scatter_sum(self, parameter: nn.Parameter, total: Tensor) -> None:
        """Add this rank's part of the sum of all ranks' ``total`` to the parameter's ``.grad``.

        Args:
            parameter: sharded; its ``.grad`` is sharded likewise.
            total: of the whole parameter's shape.
        """
