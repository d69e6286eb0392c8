"""What the clipping core does on a very small model: counted or compared, in milliseconds."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpft.privacy import make_clipper
from dpft.reproduce.claims.comparison import Comparison
from dpft.reproduce.claims.computed import computed, shown

_SCALE = 1024.0
_THRESHOLD = 0.1


class _Counted(nn.Module):
    """Hands its input on, and counts the gradients that come back through it."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        """Shape ``(B, d)``, unchanged."""
        y = x * 1
        y.register_hook(self._count)
        return y

    def _count(self, gradient: Tensor) -> None:
        self.passes += 1


def backward_passes() -> list[Comparison]:
    """How often a backward goes through the model, by clipping style, once checks are over."""
    expected = {"none": 1, "ghost": 2, "bk": 1}
    return [
        computed(
            f"backward passes a batch, {'without privacy' if style == 'none' else style}",
            _passes(style),
            told,
            told,
            f"{_passes(style)}",
        )
        for style, told in expected.items()
    ]


def _passes(style: str) -> int:
    counted = _Counted()
    model, x, labels = _small(counted)
    clipper = make_clipper(model, style, threshold=None if style == "none" else _THRESHOLD)
    for _ in range(2):  # the first batch is also checked against autograd
        model.zero_grad()
        counted.passes = 0
        clipper.backward(F.cross_entropy(model(x), labels, reduction="none"))
    clipper.close()
    return counted.passes


def scaled_loss() -> list[Comparison]:
    """A loss scaled by K: with threshold CK the clipped sum is K times the plain one.

    With the threshold left at C it is not (Li et al. 2022, appendix T), and noise at ``sigma C``
    would then be a different share of the signal.
    """
    plain = _clipped_sum(1.0, _THRESHOLD)
    both = _clipped_sum(_SCALE, _THRESHOLD * _SCALE) / _SCALE
    loss_only = _clipped_sum(_SCALE, _THRESHOLD) / _SCALE
    apart, without = (float((x - plain).norm() / plain.norm()) for x in (both, loss_only))
    return [
        computed(
            f"clipped sum with loss and threshold scaled by {_SCALE:g}, then scaled back: relative "
            "difference",
            apart,
            None,
            1e-6,
            f"{apart:.1e}",
        ),
        shown(
            f"the same with only the loss scaled by {_SCALE:g}",
            without > 0.01,
            "another sum",
            f"relative difference {without:.3f}",
        ),
    ]


def _clipped_sum(scale: float, threshold: float) -> Tensor:
    model, x, labels = _small(nn.Identity())
    clipper = make_clipper(model, "bk", threshold=threshold)
    clipper.backward(scale * F.cross_entropy(model(x), labels, reduction="none"))
    clipper.close()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _small(between: nn.Module) -> tuple[nn.Module, Tensor, Tensor]:
    """A model of two layers, and eight records; the same at every call, whatever the seed."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), between, nn.Tanh(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    x = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    return model, x, torch.randint(0, 3, (8,), generator=generator)
