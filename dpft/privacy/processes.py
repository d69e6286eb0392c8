"""The interface of the processes that train one model, as the privacy core uses it."""

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

        Called before the first forward, where parameters are sharded. ``by_autograd`` says that
        autograd forms their sums, and not the clipper. Raises UnsupportedLayerError.
        """

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, the same bits on each."""

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""

    def agree(self, flags: Sequence[bool], word: str) -> list[bool]:
        """Return of each flag, as many on each rank, whether it is set on any rank.

        Raises RuntimeError on all ranks where they have not computed the same ``word``.
        """

    def whole(self, tensor: Tensor) -> Tensor:
        """Return a divided tensor with its parts put together; every rank must ask."""

    def own_slice(self, whole: Tensor) -> tuple[Tensor, int]:
        """Return a view ``(n,)`` of this rank's part of a flattened tensor, and where it begins."""

    def scatter_sums(self, sums: Sequence[tuple[nn.Parameter, Tensor]]) -> None:
        """Add this rank's parts of the sums of all ranks' ``sums`` to the parameters' ``.grad``.

        ``sums`` are sharded parameters, whose ``.grad`` are sharded likewise, each with a total of
        the whole parameter's shape; the same parameters in the same order on each rank.
        """
