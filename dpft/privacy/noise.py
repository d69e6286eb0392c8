"""Gaussian noise on the summed clipped gradients, drawn once per logical batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from dpft.privacy import keys

if TYPE_CHECKING:
    from dpft.privacy.mechanism import Mechanism


class GaussianNoise:
    """Turns sums of clipped gradients into the noisy mean that an optimizer may see.

    ``g~ = (sum_i clip(g_i) + z) / B`` with ``z ~ N(0, (sigma * sensitivity)^2 I)`` (Li et al. 2022,
    Algorithm 1). Noise is drawn in float32 whatever the parameters' type: in half precision the
    sum would round the noise away.

    Guarantee: each coordinate of each parameter at each step has noise of its own, a function of
    (key, step): the same step replayed after a kill repeats it, no other step can.
    """

    def __init__(self, mechanism: Mechanism, key: bytes) -> None:
        self.std = mechanism.noise_std
        self._batch_size = mechanism.batch_size
        self._key = key

    @torch.no_grad()
    def privatise_(self, parameters: Mapping[str, nn.Parameter], step: int) -> None:
        """Add the noise of ``step`` to every ``.grad`` and divide by the expected batch size.

        A parameter whose ``.grad`` is None (an empty batch) gets noise alone.
        """
        for name, parameter in parameters.items():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grad = parameter.grad.float() if parameter.grad.itemsize < 4 else parameter.grad
            if self.std > 0:
                draws = keys.generator(self._key, "noise", step, name).standard_normal(
                    parameter.shape, dtype="float32"
                )
                noise = torch.from_numpy(draws).to(grad.device)
                grad = grad.add_(noise.to(grad.dtype), alpha=self.std)
            parameter.grad = grad.div_(self._batch_size).to(parameter.dtype)
