"""What every accountant takes: the ranges of its arguments, and the steps of some epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def validate(
    *,
    sampling_rate: float | None = None,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    delta: float | None = None,
    overflow: float | None = None,
) -> None:
    """Raise ValueError for the first argument outside its range (NaN is outside every range)."""
    if sampling_rate is not None and not 0 < sampling_rate <= 1:
        raise ValueError(
            f"got sampling_rate={sampling_rate}; expected a number in (0, 1]. It is batch size / "
            "dataset size: choose a batch size of at least 1 and at most the dataset size."
        )
    if noise_multiplier is not None and not noise_multiplier >= 0:
        raise ValueError(
            f"got noise_multiplier={noise_multiplier}; expected a number >= 0 (0 means no privacy)."
            " Leave it out and set privacy.epsilon=8 to have it calibrated."
        )
    if steps is not None and (steps != steps // 1 or steps < 0):
        raise ValueError(
            f"got steps={steps}; expected a whole number >= 0. "
            "Use steps_for(dataset_size=..., batch_size=..., epochs=...)."
        )
    if overflow is not None and not 0 <= overflow <= 1:
        raise ValueError(
            f"got overflow={overflow}; expected a probability: leave it out, or ask "
            "truncation.overflow(dataset_size=..., sampling_rate=..., max_batch=...)"
        )
    if delta is not None and not 0 < delta < 1:
        raise ValueError(
            f"got delta={delta}; expected a number in (0, 1), smaller than 1 / dataset size. "
            "Type for instance privacy.delta=1e-5; the papers take 1 / (2 * dataset size)."
        )
    # A step without noise changes with probability q at most: such a delta allows any of them.
    if delta is not None and sampling_rate is not None and delta >= sampling_rate:
        raise ValueError(
            f"privacy.delta is {delta:g}, and a step draws each record with probability "
            f"{sampling_rate:.3g}; expected a smaller delta, since this one allows a step to "
            "publish its records without noise. Leave it out for the default."
        )


def spent(mechanism: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a step costs, as accountants take it, of the mechanism in a record or ledger."""
    return {
        "sampling_rate": mechanism["sampling_rate"],
        "noise_multiplier": mechanism.get("total_noise_multiplier", mechanism["noise_multiplier"]),
        "overflow": mechanism.get("overflow", 0.0),
    }


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
