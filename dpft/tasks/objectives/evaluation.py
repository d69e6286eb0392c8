"""The modes of a model: evaluation, by length or of a blank, and training without dropout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpft.privacy.untouched import random_state_kept

if TYPE_CHECKING:
    from dpft.tasks.objectives.base import Losses

_DROPOUTS = frozenset(
    {
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
        torch.dropout,
        torch.alpha_dropout,
        torch.feature_dropout,
        torch.feature_alpha_dropout,
    }
)
# Where scaled_dot_product_attention takes its share of dropout.
_DROPOUT_PLACE = 4

# Layers that drop whole residual branches of some rows; they do nothing in evaluation. One of
# torchvision may drop a branch of all rows instead (``mode="batch"``), which is no dropout.
_PATHS = ("DropPath", "StochasticDepth")

# How transformers marks a block whose activations are not kept.
_CHECKPOINTED = "gradient_checkpointing"


class Undropped(TorchFunctionMode):
    """Turn dropout off, and note in ``sizes`` how many numbers each call would have masked."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _DROPOUTS:
            names = ("input", "p", "train" if "train" in kwargs else "training")
            given = {"p": 0.5, names[2]: True} | dict(zip(names, args, strict=False)) | kwargs
            if given["p"] and given[names[2]]:
                self.sizes.append(given["input"].numel())
            return given["input"]
        if func is F.scaled_dot_product_attention:
            kwargs["dropout_p"] = 0.0
            if len(args) > _DROPOUT_PLACE:
                args = (
                    *args[:_DROPOUT_PLACE],
                    kwargs.pop("dropout_p"),
                    *args[_DROPOUT_PLACE + 1 :],
                )
        return func(*args, **kwargs)


@contextmanager
def training_without_dropout(model: nn.Module) -> Iterator[Undropped]:
    """Put a model in training mode without dropout; restore mode and random state at the end."""
    modes = {module: module.training for module in model.modules()}
    # A block that is computed again in the backward would be outside of the mode, and drop there.
    again = [module for module in modes if getattr(module, _CHECKPOINTED, False) is True]
    model.train()
    for module in modes:
        of_rows = getattr(module, "mode", None) != "batch"
        if of_rows and any(name in type(module).__name__ for name in _PATHS):
            module.eval()
    for module in again:
        setattr(module, _CHECKPOINTED, False)
    try:
        with random_state_kept(*model.parameters()), Undropped() as undropped:
            yield undropped
    finally:
        for module, training in modes.items():
            module.training = training
        for module in again:
            setattr(module, _CHECKPOINTED, True)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode; restore its mode at the end."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def longest_first(examples: Sequence[Any], size: int) -> Iterator[list[int]]:
    """Yield indices of examples in batches of similar length, the longest first.

    A batch that does not fit in memory then fails at once.
    """
    order = sorted(range(len(examples)), key=lambda i: -examples[i].length)
    for start in range(0, len(order), size):
        yield order[start : start + size]


def not_finite_on_a_blank(
    objective: Losses, model: nn.Module, parameters: Sequence[Tensor] = ()
) -> str | None:
    """Return what is not finite for a padding example: ``loss``, ``gradient`` or None.

    Guarantee: it follows from the weights alone, so that it may be reported for released ones.
    Gradients are those of ``parameters``.
    """
    blank = objective.blank()
    batch = objective.collate([blank], objective.widths(blank)).to(next(model.parameters()).device)
    with evaluating(model), torch.set_grad_enabled(bool(parameters)):
        losses = objective.losses(model, batch)
        if not losses.isfinite().all():
            return "loss"
        if not parameters:
            return None
        slopes = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
    finite = all(bool(slope.isfinite().all()) for slope in slopes if slope is not None)
    return None if finite else "gradient"
