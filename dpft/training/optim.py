"""Optimizers of ``conf/optim``.

They see gradients that are private already, so whatever they compute of them is as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from dpft.config.schema import Optim


def make_optimizer(settings: Optim, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of ``conf/optim``; with privatised gradients it is DP-Adam, DP-SGD and so on.

    LAMB is that of You et al. (2020) without bias correction, as in their third version: a step
    moves a parameter by ``lr`` times its norm, which counts as 10 at most.
    """
    if settings.name == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
    first, second = settings.betas
    if settings.name == "lamb":
        from pytorch_optimizer import Lamb

        lamb: torch.optim.Optimizer = Lamb(
            parameters,
            lr=settings.lr,
            betas=(first, second),
            eps=settings.adam_epsilon,
            weight_decay=settings.weight_decay,
            # Without this, pytorch-optimizer 4.1 divides the scaled step by 1 - beta1^t: the first
            # one is ten times as long as lr says.
            adam_debias=True,
        )
        return lamb
    cls = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    return cls(
        parameters,
        lr=settings.lr,
        betas=(first, second),
        eps=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
    )
