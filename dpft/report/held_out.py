"""What a run is scored by: held out of private data, or seen before; no guarantee covers it."""

from collections.abc import Mapping
from typing import Any

from dpft.config.flags import TRAINED_BASE, Flag, has
from dpft.config.published import PUBLISHED_TASKS

HELD_OUT = (
    "a share of the data was held out, and no guarantee covers it: scores are computed from "
    "held-out records without noise. Publish them only if those records may be spoken about."
)
SEEN = (
    "the base was trained before. If that was on the same data with another split of it, the base "
    "has seen records that are scored here: scores then flatter the model, and no guarantee covers "
    "them."
)


def warnings(record: Mapping[str, Any]) -> list[str]:
    """What is to be known of all scores of a run, as sentences.

    Args:
        record: see `is_held_out`.
    """
    return [
        *([HELD_OUT] if is_held_out(record) else []),
        *([SEEN] if may_be_seen(record) else []),
    ]


def may_be_seen(record: Mapping[str, Any]) -> bool:
    """Whether the base may have been trained on what is scored: published splits stay apart."""
    published = (record.get("dataset") or {}).get("task") in PUBLISHED_TASKS
    before = has(record.get("flags", []), *TRAINED_BASE)
    return bool(before and not published and record.get("scores"))


def is_held_out(record: Mapping[str, Any]) -> bool:
    """Whether records of a split were held out of the training data.

    By the settings of a task on one's own data; or by a flag, as tasks of other packages may have.

    Args:
        record: see `dpft.runs.RunRecord`; of a run without one, its ``config``.
    """
    config = record.get("config")
    task = config.get("task") if isinstance(config, Mapping) else None
    shares = task if isinstance(task, Mapping) else {}
    return bool(
        shares.get("dev_share")
        or shares.get("test_share")
        or has(record.get("flags", []), Flag.HELD_OUT)
    )
