"""How many steps a number of epochs is."""

from __future__ import annotations

import math


def steps_for(*, dataset_size: int, batch_size: int, epochs: float) -> int:
    """Optimizer steps of a run: ``epochs`` times the whole batches in one epoch, rounded up.

    An epoch is ``floor(dataset_size / batch_size)`` steps, as with a loader that drops its last
    incomplete batch: that is what reproduces the papers' converted epsilons
    (docs/reference/accounting.md).
    Any count is honest as long as the run takes the steps that were accounted for.

    Raises:
        ValueError: if a size is below 1, ``batch_size > dataset_size`` or ``epochs < 0``.
    """
    if dataset_size < 1 or not 1 <= batch_size <= dataset_size or not 0 <= epochs < math.inf:
        raise ValueError(
            f"got dataset_size={dataset_size}, batch_size={batch_size}, epochs={epochs}; expected "
            "1 <= batch_size <= dataset_size and 0 <= epochs. Lower the batch size, or check that "
            "the dataset is complete."
        )
    steps = epochs * (dataset_size // batch_size)
    return math.ceil(steps * (1 - 1e-12))  # 0.1 * 30 is 3.0000000000000004 and must not buy a step
