"""Whether what a run is scored by was held out of its private data, which no guarantee covers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HELD_OUT = (
    "a share of the data was held out, and no guarantee covers it: scores are computed from "
    "held-out records without noise. Publish them only if those records may be spoken about."
)


def is_held_out(record: Mapping[str, Any]) -> bool:
    """Whether records of a split were held out of the training data.

    By the settings of a task on one's own data; or by a label, as tasks of other packages and the
    weights that a run began with may have one.

    Args:
        record: see `dpft.runs.RunRecord`; of a run without one, its ``config``.
    """
    config = record.get("config")
    task = config.get("task") if isinstance(config, Mapping) else None
    shares = task if isinstance(task, Mapping) else {}
    labels = record.get("labels") or ()
    return bool(
        shares.get("dev_share")
        or shares.get("test_share")
        or any("held out" in str(label) for label in labels)
    )
