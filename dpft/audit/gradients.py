"""Canaries that are gradients: one coordinate each, as large as a clipped gradient may be.

A guarantee for adding or removing one record holds for the worst record and against one who knows
everything else. So does this test: a canary's gradient lies on one coordinate of each clipping
group, where its size is that group's threshold, and what the real records add there is known and
subtracted. What is left is noise, with the canary in it or not. Noise that is missing, far too
small or the same at every step, sampling at far another rate, and thresholds that the noise does
not know all show; docs/how-to/audit.md says how far.

What clips the real records is not tested: see `dpft.audit.records`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpft.audit.canaries import Canaries
from dpft.privacy import keys

if TYPE_CHECKING:
    from dpft.privacy import Clipper, Mechanism


class GradientCanaries(Canaries):
    """``m`` canaries on coordinates of their own (Steinke et al. 2023, section 6: Dirac canaries).

    Args:
        count: ``m``.
        clipper: whose sums they are put into.
        mechanism: of the run.
        key: decides coins and coordinates; secret.

    Guarantee: an included canary adds to a step's sum a vector of norm ``sensitivity``, and counts
    as a norm at its threshold: it is a record such as the mechanism accounts for, no more. Slots
    are sampled as records are, whether a canary is in them or not.
    """

    def __init__(self, count: int, clipper: Clipper, mechanism: Mechanism, key: bytes) -> None:
        generator = keys.generator(key, "audit", "gradients")
        super().__init__(count, generator)
        self._clipper = clipper
        self._mechanism = mechanism
        # In each group the largest parameter: there is most room for coordinates of their own.
        self._places: list[tuple[str, Tensor]] = []
        for group in clipper.groups:
            name = max(group.parameters, key=lambda name: clipper.parameters[name].numel())
            size = clipper.parameters[name].numel()
            self._places.append((name, torch.from_numpy(_places(generator, size, count))))
        self._before: list[Tensor] = []
        self._scales: list[tuple[float, float]] = []

    @torch.no_grad()
    def insert(self, slots: Sequence[int]) -> None:
        clipper = self._clipper
        sampled = [slot for slot in slots if self.included[slot]]
        stds = self._mechanism.noise_stds(clipper.thresholds)
        self._scales = list(zip(clipper.thresholds, stds, strict=True))
        self._before = []
        for (name, places), threshold in zip(self._places, clipper.thresholds, strict=True):
            parameter = clipper.parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            flat = parameter.grad.view(-1)
            places = places.to(flat.device)
            self._before.append(flat[places].double())
            here = places[sampled]
            flat.index_add_(0, here, torch.full_like(here, threshold, dtype=flat.dtype))
        if clipper.adaptive is not None:
            # A norm at its threshold is counted as one below, centred as all counts are.
            clipper.below += 0.5 * len(sampled)

    @torch.no_grad()
    def observe(self) -> None:
        """Value what was released, by the likelihood of a canary in it.

        A step's value is ``sum_k <released_k - known_k, canary_k> C_k / std_k^2``: less half of
        ``sum_k C_k^2 / std_k^2`` it is the log-likelihood ratio of a step that has the canary
        against one that has not. Since a canary is in a step at the sampling rate ``q`` only, what
        is summed is ``log(1 - q + q e^ratio)``: by Neyman and Pearson no score tells more. Without
        noise there is no likelihood: the value is ``sum_k <released_k - known_k, canary_k>``.
        """
        total = np.zeros(len(self))
        half, noisy = 0.0, True
        for (name, places), known, (threshold, std) in zip(
            self._places, self._before, self._scales, strict=True
        ):
            grad = self._clipper.parameters[name].grad
            assert grad is not None
            released = grad.view(-1)[places.to(grad.device)].double() * self._mechanism.batch_size
            weight = threshold / std**2 if std > 0 else threshold
            total += weight * (released - known).cpu().numpy()
            half += weight * threshold / 2
            noisy = noisy and std > 0
        if not noisy:
            self.add(total)
            return
        rate = self._mechanism.sampling_rate
        with np.errstate(divide="ignore"):  # at rate 1 no step is without the canary
            likelihood = np.logaddexp(np.log1p(-rate), np.log(rate) + total - half)
        self.add(total, likelihood)


def _places(generator: np.random.Generator, size: int, count: int) -> npt.NDArray[np.int64]:
    """``count`` of ``size`` coordinates, each as seldom as possible."""
    if count <= size:
        return generator.choice(size, count, replace=False).astype(np.int64)
    rounds = [generator.permutation(size) for _ in range(-(-count // size))]
    return np.concatenate(rounds)[:count].astype(np.int64)
