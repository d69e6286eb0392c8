"""What the privacy core knows of other processes: how many there are, and how sums are added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    def prepare(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], by_autograd: bool
    ) -> None:
        """Refuse sharded parameters whose sums would not be those of all ranks.

        Only where parameters are sharded, before the first forward.

        Args:
            model: with hooks of whoever shards it.
            parameters: the trained ones.
            by_autograd: whether autograd forms their sums, and not the clipper.

        Raises:
            UnsupportedLayerError: naming a parameter.
        """

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, the same bits on each."""

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank."""

    def agree(self, flags: Sequence[bool], word: str) -> list[bool]:
        """Of each flag, whether it is set on any rank.

        Args:
            flags: as many on each rank.
            word: what all ranks must have computed alike.

        Raises:
            RuntimeError: on all ranks, where they have not.
        """

    def whole(self, tensor: Tensor) -> Tensor:
        """What a divided tensor is when its parts are put together; every rank must ask."""

    def own_slice(self, whole: Tensor) -> tuple[Tensor, int]:
        """Of a sharded tensor, flattened, the part that this rank holds.

        Returns:
            A view ``(n,)`` of the part, and where it begins in the whole.
        """

    def scatter_sums(self, sums: Sequence[tuple[nn.Parameter, Tensor]]) -> None:
        """Add this rank's parts of the sums of all ranks' ``sums`` to the parameters' ``.grad``.

        Args:
            sums: sharded parameters, whose ``.grad`` are sharded likewise, each with a total of the
                whole parameter's shape. The same parameters in the same order on each rank.
        """
