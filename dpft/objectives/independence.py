"""A check that the loss of a record does not depend on what else is in its batch.

The guarantee rests on it, and no check of gradients can see it: a model that ignores the attention
mask, counts positions from the padding, or changes its rotary scaling with the longest text of a
batch has gradients that are exact and sums whose sensitivity is unbounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dpft.errors import ModelError
from dpft.evaluation import evaluating
from dpft.objectives.base import Objective

# What rounding explains: kernels differ with the shape of a batch.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5


def check_independence(
    objective: Objective,
    model: Any,
    examples: Sequence[Any],
    forget: Callable[[], None] = lambda: None,
) -> None:
    """Compare losses of training examples alone, among others, and alone again.

    The shortest and a middle one are put beside the longest, since what a model does may change
    with the length. The third time tells whether a batch left something behind in the model. It is
    done with gradients, as in training: what a clipper's hooks make of the model is looked at too.

    Args:
        objective: gives the losses.
        model: on its device; left in training mode if it was. Dropout is off meanwhile.
        examples: all encoded training examples.
        forget: lets go of what hooks keep of a forward that no backward follows.

    Raises:
        ModelError: if a loss or a buffer differs. The message has no number of the data.
    """
    order = sorted(range(len(examples)), key=lambda i: (examples[i].length, i))
    chosen = [examples[i] for i in dict.fromkeys((order[0], order[len(order) // 2], order[-1]))]
    device = next(model.parameters()).device

    def losses(some: Sequence[Any]) -> Tensor:
        with torch.enable_grad():
            found = objective.losses(model, objective.collate(some).to(device))
        forget()
        return found.detach().double()

    with evaluating(model):
        buffers = {name: b.clone() for name, b in model.named_buffers()}
        alone = torch.cat([losses([example]) for example in chosen])
        among = losses(chosen)
        again = torch.cat([losses([example]) for example in chosen])
        changed = [n for n, b in model.named_buffers() if n in buffers and _differ(b, buffers[n])]
    if _differ(alone, among) or _differ(alone, again) or changed:
        what = f"its buffer {changed[0]} changes with the batch" if changed else "losses differ"
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
