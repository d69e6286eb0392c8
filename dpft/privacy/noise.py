"""Gaussian noise on the summed clipped gradients, drawn once per logical batch.

With adaptive thresholds, also on the counts that move them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from dpft.privacy import keys, normals
from dpft.privacy.styles import check_single_process

if TYPE_CHECKING:
    from dpft.privacy.clipping.clipper import Clipper
    from dpft.privacy.mechanism import Mechanism

NOISE_VERSION = 2
"""Of what noise and samples follow from a key; 1 was NumPy's Philox. A step that was spent under
one version cannot be replayed under another."""


@dataclass(frozen=True)
class Released:
    """The releases of one step in addition to the noisy gradient; empty for fixed thresholds.

    Attributes:
        fractions: ``b_k``, the noisy share of each group's norms at or below its estimate.
        thresholds: that the step was clipped with, which earlier fractions determine.
    """

    fractions: tuple[float, ...] = ()
    thresholds: tuple[float, ...] = ()


class GaussianNoise:
    """Turns sums of clipped gradients into the noisy mean that an optimizer may see.

    ``g~_k = (sum_i clip(g_ik) + z_k) / B`` with ``z_k ~ N(0, std_k^2 I)`` (Li et al. 2022,
    Algorithm 1; He et al. 2022, Algorithm 1, with groups). Noise is drawn, added and divided in
    float64, and the result rounded once to the parameter's type.

    Guarantee: each coordinate of each parameter at each step, and each count, has separate noise,
    a function of (key, step, parameter's name, position in the flattened parameter): the same step
    replayed after a kill repeats it, no other step can. One object releases each step at most once,
    in order.

    A process may hold a part of the model: then the clipper's ``parameters`` are those of that
    part, and all else is of the whole model, the same in every process.

    Attributes:
        deviations: standard deviation of the noise that the last release has on each coordinate of
            a parameter's ``.grad``, by the parameter's name; empty before the first.

    Raises:
        ValueError: if what the clipper releases is not what the mechanism accounts for.
        UnsupportedLayerError: in one of several processes that are no cohort.
    """

    def __init__(self, mechanism: Mechanism, key: bytes, clipper: Clipper) -> None:
        if clipper.groups:
            check_single_process(cohort=clipper.cohort)
        policy = clipper.policy
        # A resumed clipper's thresholds have moved on: where they began must be what was stated.
        first = tuple(group.threshold for group in clipper.groups)
        named = [name for group in clipper.groups for name in group.parameters]
        sizes = tuple(sum(clipper.sizes.get(n, 0) for n in g.parameters) for g in clipper.groups)
        for what, found, stated in (
            ("first thresholds", first, mechanism.thresholds),
            ("rule of adaptive thresholds", policy.rule, mechanism.quantiles),
            ("thresholds", first if policy.rule else policy.thresholds, mechanism.thresholds),
            ("parameters in groups", sorted(named), sorted(clipper.sizes) if named else []),
            ("sizes of groups", sizes, mechanism.dimensions or sizes),
        ):
            if found != stated:
                raise ValueError(
                    f"the clipper's {what} {str(found)[:80]} differ from {str(stated)[:80]}, for "
                    "which the noise is scaled; expected them equal: make the mechanism with "
                    "`Mechanism.over` from the clipper's groups"
                )
        self._mechanism = mechanism
        self._key = key
        self._clipper = clipper
        self._next = 0
        self.deviations: Mapping[str, float] = {}
        self._group = {name: k for k, g in enumerate(clipper.groups) for name in g.parameters}

    @torch.no_grad()
    def privatise_(self, step: int) -> Released:
        """Add the noise of ``step`` to every ``.grad`` and divide by the expected batch size.

        With adaptive thresholds it also releases how many norms lay below the estimates, and sets
        the clipper's thresholds for the next step. A parameter whose ``.grad`` is None (an empty
        batch) gets noise alone.

        Args:
            step: from 0; after those that this object has released before.

        Raises:
            ValueError: for a step that was released before, whose noise would cancel, or one that
                the mechanism does not account for.
            RuntimeError: after a backward that broke off.
        """
        mechanism, clipper = self._mechanism, self._clipper
        if not self._next <= step < mechanism.steps:
            raise ValueError(
                f"step is {step}; expected {self._next} to {mechanism.steps - 1}: the mechanism "
                f"accounts for {mechanism.steps} steps, and two releases of one step have the same "
                "noise"
            )
        if clipper.unfinished:
            raise RuntimeError(
                "the last backward broke off: .grad may hold one record twice once it is repeated; "
                "expected a finished batch. Set .grad to None, call clipper.reset() and begin the "
                "step again"
            )
        self._next = step + 1
        clipper.collect()
        # Scaled to the thresholds that this step was clipped with.
        thresholds = clipper.policy.thresholds
        stds = mechanism.noise_stds(thresholds)
        of_sums = {name: stds[self._group[name]] if stds else 0.0 for name in clipper.parameters}
        slices, means = list[Slice](), list[Tensor]()
        for name, parameter in clipper.parameters.items():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            std = of_sums[name]
            if std > 0:
                parameter.grad = parameter.grad.contiguous()
                key = keys.derive(self._key, "noise", step, name)
                sums, first = clipper.own_slice(parameter.grad)
                slices.append(Slice(sums, key, std, first))
            else:
                means.append(parameter.grad)
        if means:
            torch._foreach_div_(means, mechanism.batch_size)
        noisy_means_(slices, mechanism.batch_size)
        self.deviations = {name: std / mechanism.batch_size for name, std in of_sums.items()}
        key = keys.derive(self._key, "quantiles", step)
        fractions = clipper.policy.release(
            mechanism.batch_size, mechanism.count_noise or 0.0, partial(normals.normals, key, 0)
        )
        return Released(fractions, thresholds) if fractions else Released()


class Slice(NamedTuple):
    """A slice of a flattened parameter's sum of clipped gradients."""

    sums: Tensor  # (n,)
    key: bytes  # of the step's noise on the whole parameter
    std: float  # standard deviation of the noise on the sum
    first: int = 0  # where the slice begins in the whole


def noisy_means_(slices: Sequence[Slice], batch_size: int) -> None:
    """Compute ``(sums + std z) / batch_size`` in place, ``z`` standard normal.

    Guarantee: any slices that together make the whole have the noise that the whole would have, bit
    for bit, wherever they are.
    """
    for kind in {(one.sums.device, one.sums.dtype): None for one in slices}:
        some = [one for one in slices if (one.sums.device, one.sums.dtype) == kind]
        (_kernel(*kind) or on_cpu)(some, 1 / batch_size)


def on_cpu(slices: Sequence[Slice], scale: float) -> None:
    """Compute it on the CPU, wherever the sums are."""
    wanted = [(one.key, one.first, one.first + len(one.sums)) for one in slices]
    for which, start, z in normals.tiles(wanted):
        sums, _, std, first = slices[which]
        piece = sums[start - first :][: len(z)]
        # One operation at a time, since add_(alpha=) may be fused.
        piece.copy_(z.mul_(std).add_(piece.to(z.device)).mul_(scale))


@cache
def _kernel(
    device: torch.device, dtype: torch.dtype
) -> Callable[[Sequence[Slice], float], None] | None:
    """Return one Triton kernel for all slices on a GPU, where it gives the bits of the CPU."""
    if device.type != "cuda" or dtype not in (torch.float32, torch.float64):
        return None
    # Two parameters, one far into its keystream; both begin and end amid a block.
    sums = torch.linspace(-1, 1, 100_001, dtype=dtype, device="cpu")
    found, expected = (
        [Slice(x[:700], bytes(32), 1.5, 3), Slice(x[700:], bytes(range(32)), 0.7, (1 << 34) + 5)]
        for x in (sums.to(device), sums)
    )
    try:
        from dpft.privacy import fused

        fused.noisy_means_(found, 1 / 3)
    except Exception as error:  # Triton is missing, or whatever a compiler raises
        why = f"could not be made ({type(error).__name__}: {error})"
    else:
        on_cpu(expected, 1 / 3)
        pairs = zip(found, expected, strict=True)
        if all(torch.equal(one.sums.cpu(), other.sums) for one, other in pairs):
            return fused.noisy_means_
        why = "gives other bits"
    warnings.warn(
        f"the kernel of noise {why} on {device}, so noise is drawn on the CPU: slower, with the "
        "same numbers",
        stacklevel=2,
    )
    return None
