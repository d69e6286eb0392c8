"""A check that the loss of a record does not depend on what else is in its batch.

The guarantee rests on it, and no check of gradients can see it: a model that ignores the attention
mask, counts positions from the padding, or changes its rotary scaling with the longest text of a
batch has gradients that are exact and sums whose sensitivity is unbounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dpft.errors import ModelError
from dpft.evaluation import evaluating
from dpft.objectives.base import Objective
from dpft.privacy.precision import full_precision

if TYPE_CHECKING:
    from dpft.privacy import Clipper

# What rounding explains: kernels differ with the shape of a batch. Of losses, and of clipped sums
# as a share of the threshold; where some weights are in half precision the latter says little.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5
_SHARE, _HALF = 3e-4, 5e-2


def check_independence(
    objective: Objective,
    model: Any,
    examples: Sequence[Any],
    clipper: Clipper | None = None,
) -> None:
    """Compare losses of training examples alone, among others, and alone again.

    The shortest and a middle one are put beside the longest, since what a model does may change
    with the length. The third time tells whether a batch left something behind in the model. It is
    done with gradients, as in training: what a clipper's hooks make of the model is looked at too.

    With a clipper the sum of their clipped gradients is compared with those of each alone: that is
    what noise is scaled to, and it tells what losses hide while a new head's weights are small.

    Args:
        objective: gives the losses.
        model: on its device; left in training mode if it was. Dropout is off meanwhile.
        examples: all encoded training examples.
        clipper: attached to the model; left as after `reset`, and the model without gradients.

    Raises:
        ModelError: if a loss, a buffer or a clipped sum differs. The message has no number of the
            data.
        UnsupportedLayerError: what the clipper says of these batches.
    """
    order = sorted(range(len(examples)), key=lambda i: (examples[i].length, i))
    chosen = [examples[i] for i in dict.fromkeys((order[0], order[len(order) // 2], order[-1]))]
    device = next(model.parameters()).device
    together, *apart = [
        objective.collate(some).to(device) for some in (chosen, *([one] for one in chosen))
    ]

    def losses(batch: Any) -> Tensor:
        with torch.enable_grad():
            found = objective.losses(model, batch)
        if clipper is not None:
            clipper.reset()
        return found.detach().double()

    with evaluating(model):
        buffers = {name: b.clone() for name, b in model.named_buffers()}
        alone = torch.cat([losses(batch) for batch in apart])
        among = losses(together)
        again = torch.cat([losses(batch) for batch in apart])
        changed = [n for n, b in model.named_buffers() if n in buffers and _differ(b, buffers[n])]
        what = f"its buffer {changed[0]} changes with the batch" if changed else ""
        if not what and (_differ(alone, among) or _differ(alone, again)):
            what = "losses differ"
        if not what and clipper is not None:
            sums_differ = _sums_differ(objective, model, together, apart, clipper)
            what = "gradients differ" if sums_differ else ""
    if what:
        raise ModelError(
            f"with {type(model).__name__} the loss of a record depends on what else is in its "
            f"batch ({what}), so that no clipping bounds what one record adds; expected a model "
            "that heeds the attention mask and the positions it is given. Use another model, or "
            "a shorter task.max_length where it changes with the length; clip=none trains without "
            "privacy"
        )


def _differ(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ by more than rounding; equal infinities and NaNs do not."""
    if one.shape != other.shape:
        return True
    one, other = one.double(), other.double()
    return not torch.allclose(one, other, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)


def _sums_differ(
    objective: Objective, model: Any, together: Any, apart: Sequence[Any], clipper: Clipper
) -> bool:
    """Whether the clipped sum of one batch is not that of some others together."""

    def summed(some: Sequence[Any]) -> dict[str, Tensor]:
        for batch in some:
            with torch.enable_grad():
                clipper.backward(objective.losses(model, batch))
        found = {}
        for name, parameter in clipper.parameters.items():
            assert parameter.grad is not None
            found[name], parameter.grad = parameter.grad, None
        return found

    try:
        with full_precision():  # or kernels for other shapes round by thousandths
            one, other = summed([together]), summed(apart)
    finally:
        for parameter in clipper.parameters.values():
            parameter.grad = None
        clipper.reset()
    half = any(parameter.dtype.itemsize < 4 for parameter in model.parameters())
    allowed = _HALF if half else _SHARE
    for group, threshold in zip(clipper.groups, clipper.thresholds, strict=True):
        difference = math.hypot(
            *(float((one[name] - other[name]).norm()) for name in group.parameters)
        )
        if not difference <= allowed * threshold:
            return True
    return False
