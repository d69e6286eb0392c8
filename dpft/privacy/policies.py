"""Threshold policies: the norms that groups are clipped to, and how these move from step to step.

A policy sees the norms of every microbatch (`ThresholdPolicy.observe`). Once a logical batch it
releases what it counted, with noise, and sets the thresholds of the next step
(`ThresholdPolicy.release`). A new policy is a subclass in one file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from dpft.privacy.precision import on_device
from dpft.privacy.quantiles import Quantiles
from dpft.privacy.spec import check_threshold, sensitivity

if TYPE_CHECKING:
    from torch import nn


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


class ThresholdPolicy:
    """Thresholds that never move, and the base class of those that do.

    Attributes:
        thresholds: the norms ``C_k`` to which groups are clipped now.
        rule: how estimates of quantiles move; None where thresholds are fixed.
    """

    rule: Quantiles | None = None
    thresholds: tuple[float, ...]

    def __init__(self, first: Sequence[float]) -> None:
        self.thresholds = tuple(first)

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of the sum of gradients that are clipped to `thresholds`."""
        return sensitivity(self.thresholds)

    def observe(self, norms: Tensor, factors: Tensor) -> None:
        """Count the norms of a microbatch's records by group, ``(B, K)`` like the clip factors."""

    def collect(self, cohort: Cohort, device: torch.device) -> None:
        """Add up the counts of all processes, on ``device``."""

    def release(
        self, batch_size: int, std: float = 0.0, draw: Callable[[int], Tensor] = torch.zeros
    ) -> tuple[float, ...]:
        """Return what a step releases of the counts; set the thresholds of the next step.

        ``batch_size`` is the expected one, ``std`` the standard deviation of the noise on each
        count, and ``draw`` returns so many standard normal numbers.
        """
        return ()

    def reset(self) -> None:
        """Forget what was counted since the last release."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the policy."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's `state`."""


class QuantileThresholds(ThresholdPolicy):
    """Thresholds that follow private quantiles of the groups' norms (He et al. 2022, Algorithm 1).

    Attributes:
        estimates: the quantile estimates ``C_k``.
        below: ``sum_i (1[n_ik <= C_k] - 1/2)`` over the records since the last release, ``(K,)`` in
            float64. One record changes each entry by at most 1/2; a gradient that is not finite
            (whose factor is 0) counts nothing.
    """

    rule: Quantiles
    below: Tensor

    def __init__(self, first: Sequence[float], rule: Quantiles) -> None:
        self.rule = rule
        self.move(first)

    def move(self, estimates: Sequence[float]) -> None:
        """Set the estimates, and with them the thresholds; forget what was counted."""
        thresholds = self.rule.rescaled(estimates)
        for k, threshold in enumerate(thresholds):
            check_threshold(f"group {k}", threshold)
        self.estimates, self.thresholds = tuple(estimates), thresholds
        self.reset()

    def observe(self, norms: Tensor, factors: Tensor) -> None:
        usable = factors > 0
        estimates = torch.tensor(self.estimates, dtype=norms.dtype)
        small = norms <= on_device(estimates, norms.device)
        counts = (small & usable).sum(0, dtype=torch.float64)
        counts = counts - 0.5 * usable.sum(0, dtype=torch.float64)
        self.below = self.below.to(norms.device) + counts

    def collect(self, cohort: Cohort, device: torch.device) -> None:
        self.below = self.below.to(device)  # a rank without a record has counted nothing there
        cohort.all_reduce([self.below])

    def release(
        self, batch_size: int, std: float = 0.0, draw: Callable[[int], Tensor] = torch.zeros
    ) -> tuple[float, ...]:
        """Return ``b_k``, the noisy shares of norms at or below the estimates."""
        draws = draw(len(self.estimates)).tolist()
        fractions = tuple(
            0.5 + (count + std * z) / batch_size
            for count, z in zip(self.below.tolist(), draws, strict=True)
        )
        self.move(self.rule.updated(self.estimates, fractions))
        return fractions

    def reset(self) -> None:
        self.below = torch.zeros(len(self.estimates), dtype=torch.float64)

    def state(self) -> dict[str, Any]:
        return {"estimates": list(self.estimates)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.move(state["estimates"])


class PartOfPolicy(ThresholdPolicy):
    """The groups ``own`` of a policy, for a part of the model.

    Args:
        whole: the policy of all groups, which counts and moves.
        own: indices of the part's groups.
    """

    def __init__(self, whole: ThresholdPolicy, own: Sequence[int]) -> None:
        self._whole, self._own = whole, list(own)
        self.rule = whole.rule

    @property
    def thresholds(self) -> tuple[float, ...]:  # type: ignore[override]
        return tuple(self._whole.thresholds[k] for k in self._own)

    def observe(self, norms: Tensor, factors: Tensor) -> None:
        shape = len(norms), len(self._whole.thresholds)
        places = torch.tensor(self._own, device=norms.device)
        every = [norms.new_zeros(shape).index_copy(1, places, x) for x in (norms, factors)]
        self._whole.observe(*every)  # a factor of 0 counts nothing
