"""DP-AdamBC: Adam whose second moment is rid of the noise's variance.

Tang, Shpilevskiy & Lecuyer 2023 (arXiv 2312.14334), algorithm 1. The square of a noisy gradient has
the square of the clipped one in it and, on top, the variance of the noise, which usually is the
larger part and the same for all coordinates: what DP-Adam divides by is almost a constant, and it
is DP-SGD with momentum. The variance is known, since the mechanism states it, and comes off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

FLOOR = 0.1
"""The floor where none is given, as a share of the noise's variance: about what an average over two
hundred squares of noise alone is off by, ``sqrt(2 / 200)``."""


class AdamBC(torch.optim.Optimizer):
    """Adam on noisy gradients, with ``max(v - phi, gamma)`` in place of ``v``, per coordinate.

    ``v`` is the exponential average of squared gradients with Adam's own correction, ``phi`` that
    of the variances of their noise with the same weights: the variance of one step where it stays
    the same, and of the steps that ``v`` is made of where thresholds adapt.

    What it computes, it computes of what was released already: it costs no privacy.

    Args:
        parameters: as of `torch.optim.Adam`.
        lr: the rate.
        betas: decay of both moments.
        gamma: ``gamma'`` of the paper, the least that counts as a second moment; None: `FLOOR` of
            the parameter's ``phi``.
        weight_decay: added to the gradient, times the weight.

    Attributes:
        deviations: standard deviation of the noise on each coordinate of each parameter's ``.grad``
            (`dpft.privacy.noise.GaussianNoise.deviations`), set before each step.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float],
        gamma: float | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "gamma": gamma, "weight_decay": weight_decay}
        super().__init__(parameters, settings)
        self.deviations: Mapping[Tensor, float] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Move the parameters that have a gradient.

        Raises:
            ValueError: for a parameter whose noise was not stated, or has no variance.
        """
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)

    def _move(self, parameter: Tensor, grad: Tensor, group: Mapping[str, Any]) -> None:
        deviation = self.deviations.get(parameter, 0.0)
        if not deviation > 0:
            raise ValueError(
                f"the noise on a gradient of shape {tuple(parameter.shape)} has standard deviation "
                f"{deviation}; expected more: set `deviations` to those of the step's noise, or "
                "take Adam, where there is none"
            )
        state = self.state[parameter]
        if not state:
            state["step"], state["noise_variance"] = 0, 0.0
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(parameter) for _ in range(2))
        first, second = group["betas"]
        if group["weight_decay"]:
            grad = grad.add(parameter, alpha=group["weight_decay"])
        # Python's numbers, which a checkpoint gives back to the last bit.
        state["step"] += 1
        state["noise_variance"] += (1 - second) * (deviation**2 - state["noise_variance"])
        mean = state["exp_avg"].lerp_(grad, 1 - first)
        square = state["exp_avg_sq"].mul_(second).addcmul_(grad, grad, value=1 - second)
        shares = 1 - first ** state["step"], 1 - second ** state["step"]
        phi = state["noise_variance"] / shares[1]
        floor = FLOOR * phi if group["gamma"] is None else group["gamma"]
        scale = square.div(shares[1]).sub_(phi).clamp_(min=floor).sqrt_()
        parameter.addcdiv_(mean, scale, value=-group["lr"] / shares[0])
