"""A layer, and the rule by which its gradients are clipped."""

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.rules import DirectUse, Rule, Use


class Scale(nn.Module):
    """Each feature times a number that is trained."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        """``(B, ..., d)`` to the same."""
        return x * self.scale


class ScaleRule(Rule):
    """The gradient of record ``i`` is ``a_i * g_i``, summed over its positions."""

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        """One use for each trained parameter, by its name in the layer."""
        assert a is not None
        return {"scale": DirectUse((a * g).flatten(1, -2).sum(1))}  # (B, d)
