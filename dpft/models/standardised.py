"""The clipping rule of convolutions whose filters are standardised, as wide residual nets have."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.rules import DirectUse, SquaredNorm, Use
from dpft.privacy.clipping.rules.base import floor
from dpft.privacy.clipping.rules.conv import ConvRule, ConvUse


@dataclass(frozen=True)
class StandardisedUse(Use):
    """A weight that enters its convolution standardised, filter by filter (Qiao et al. 2019).

    A filter ``w`` of ``n`` numbers is used as ``u = scale (w - mean(w))``, where ``scale`` is
    ``1 / |w - mean(w)|``. If ``h`` is the gradient of a record with respect to the filter as used,
    then with respect to the filter as stored it is

        ``scale (h - mean(h) - <h, u> u)``,

    which is linear in ``h`` and the same map for all records, and whose squared length is
    ``scale^2 (|h|^2 - n mean(h)^2 - <h, u>^2)``. So the sum over records is taken first and mapped
    once, and the norms need two numbers per record and filter besides those of a convolution.

    Attributes:
        used: the use of the filters as used; formed gradients are ``(B, p, ...)``.
        unit: ``u``, of the weight's shape; zero for a filter so small that its scale is a constant.
        scale: ``(p,)``.
    """

    used: ConvUse | DirectUse
    unit: Tensor
    scale: Tensor

    def squared_norm(self) -> SquaredNorm:
        if isinstance(self.used, DirectUse):
            h, weights = self.used.gradients.flatten(2), self.scale.square()
            total = torch.linalg.vector_norm(h, dim=2).square() @ weights
            unit = self.unit.flatten(1)
            ones = torch.full_like(unit, unit.shape[1] ** -0.5)
            along = torch.bmm(h.transpose(0, 1), torch.stack((ones, unit), 2))
            removed = along.square().sum(2).t() @ weights
            return SquaredNorm(total - removed, total)
        scaled = self._scaled()
        norm = scaled.squared_norm()
        removed = scaled.filter_sums().square().sum(1) / self.unit[0].numel()
        # <h, u> is the inner product of g with the output that the filter u gives.
        removed += (scaled.convolve(self.unit) * scaled.g).sum((2, 3)).square().sum(1)
        value = torch.maximum(norm.value - removed, floor(scaled.bound()))
        return SquaredNorm(value, norm.scale)

    def bound(self) -> Tensor:
        if isinstance(self.used, DirectUse):
            return super().bound()
        return self._scaled().bound()

    def rows(self, index: Tensor) -> StandardisedUse:
        return replace(self, used=self.used.rows(index))

    def per_example(self) -> Tensor:
        return self._pulled_back(self.used.per_example())

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._pulled_back(self.used.weighted_sum(weights))

    def without(self, dropped: Tensor) -> StandardisedUse:
        return replace(self, used=self.used.without(dropped))

    def cheapest_form(self, transient: bool) -> StandardisedUse:
        used = self.used.cheapest_form(transient)
        assert isinstance(used, ConvUse | DirectUse)
        return replace(self, used=used)

    def _scaled(self) -> ConvUse:
        assert isinstance(self.used, ConvUse)
        return replace(self.used, g=self.used.g * self.scale[:, None, None])

    def _pulled_back(self, used: Tensor) -> Tensor:
        """Return gradients of the stored filters, ``(..., p, ...)``, from those as used."""
        unit = self.unit.flatten(1)
        h = used.flatten(1 - self.unit.dim())
        h = h - h.mean(-1, keepdim=True) - (h * unit).sum(-1, keepdim=True) * unit
        return (h * self.scale[:, None]).view(used.shape)


class StandardisedConvRule(ConvRule):
    """A convolution whose module uses ``standardised(weight)`` in place of its weight.

    The module has ``eps``, and each filter ``w`` of ``n`` numbers is used as
    ``(w - mean(w)) / sqrt(max(n var(w), eps))`` (Brock et al. 2021, eq. 1; De et al. 2022).
    """

    def weight_use(self, module: nn.Module, use: ConvUse) -> Use:
        assert isinstance(module.weight, Tensor)
        assert isinstance(module.eps, float)
        filters = module.weight.detach().flatten(1)
        centred = filters - filters.mean(1, keepdim=True)
        squared = centred.square().sum(1)
        scale = squared.clamp(min=module.eps).rsqrt()
        # Below eps the scale does not depend on the filter, and nothing is lost along it.
        unit = centred * (scale * (squared >= module.eps))[:, None]
        return StandardisedUse(use, unit.view_as(module.weight), scale)
