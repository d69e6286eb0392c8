"""Names that may not appear outside ``private/``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Computed from the training records without noise. Poisson batch sizes belong here too: they
# depend on whether a record exists. The check is on names, so it catches slips, not intent.
NOISELESS = frozenset(
    {
        "actual_batch_size",
        "batch",
        "clipped",
        "clipped_fraction",
        "count",
        "counts",
        "examples_seen",
        "fraction_clipped",
        "grad_norm",
        "grad_norms",
        "gradient_norm",
        "gradient_norms",
        "indices",
        "loss",
        "losses",
        "mean_loss",
        "norm",
        "norms",
        "per_example_norms",
        "sampled",
        "sampled_records",
        "train_loss",
        "training_loss",
    }
)


def noiseless_names(value: Any, where: str) -> list[str]:
    """Dotted keys inside ``value`` whose names are those of noiseless training statistics."""
    if not isinstance(value, Mapping):
        return []
    found: list[str] = []
    for key, item in value.items():
        if str(key).lower() in NOISELESS:
            found.append(f"{where}.{key}")
        found += noiseless_names(item, f"{where}.{key}")
    return found
