"""Learning-rate schedules of ``conf/optim``."""

from __future__ import annotations

import math

from dpft.config.optim import Optim


def warmup_steps(settings: Optim, steps: int) -> int:
    """Steps of the warm-up in a run of ``steps``; a share is rounded up."""
    if settings.warmup_ratio is None:
        return settings.warmup_steps
    return math.ceil(settings.warmup_ratio * steps)


def lr_factor(settings: Optim, step: int, steps: int) -> float:
    """Learning rate over its peak at ``step``: linear warm-up, then constant or linear to zero."""
    warmup = warmup_steps(settings, steps)
    if step < warmup:
        return (step + 1) / warmup
    if settings.schedule == "constant":
        return 1.0
    return max(0.0, (steps - step) / max(1, steps - warmup))
