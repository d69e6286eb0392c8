"""What every evaluation of a model does: leave training mode for a while, and go by length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within this context dropout is off; after it the model is in the mode that it was in."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def longest_first(examples: Sequence[Any], size: int) -> Iterator[list[int]]:
    """Indices of all examples in batches of at most ``size``, of like length, the longest first.

    A batch that does not fit in memory then fails at once and not after an hour.
    """
    order = sorted(range(len(examples)), key=lambda i: -examples[i].length)
    for start in range(0, len(order), size):
        yield order[start : start + size]
