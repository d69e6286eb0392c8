"""The brute-force answer: one ordinary backward per record, nothing clever."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def reference_clip(
    model: nn.Module,
    record_loss: Callable[[int], Tensor],
    batch: int,
    factor: Callable[[Tensor], Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Norms (B,) and the clipped sum of each trainable parameter, record by record."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    total = {n: torch.zeros_like(p) for n, p in parameters.items()}
    norms = torch.zeros(batch, dtype=next(iter(parameters.values())).dtype)
    for i in range(batch):
        grads = torch.autograd.grad(record_loss(i), list(parameters.values()), allow_unused=True)
        grads = [
            torch.zeros_like(p) if g is None else g
            for g, p in zip(grads, parameters.values(), strict=True)
        ]
        norms[i] = torch.sqrt(sum(g.square().sum() for g in grads))
        c = factor(norms[i])
        for name, g in zip(parameters, grads, strict=True):
            total[name] += c * g
    return norms, total


def clear(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def grads_of(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}
