"""What the arguments of every accountant must satisfy."""

from __future__ import annotations


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
            "publish its records without noise. Leave it out for 1 / (2 * dataset size)."
        )
