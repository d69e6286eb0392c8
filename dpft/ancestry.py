"""What a model that a run leaves says of itself to whoever trains it further.

The card is for people. This small file is for the next run, whose epsilon covers its own records
and steps alone, and whose numbers owe to the base what the base owed to others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "dpft.json"
_MARK = "base trained before"


def write_ancestry(model: Path, record: Mapping[str, Any]) -> None:
    """Put what `ancestry` reads beside the weights of a run.

    Args:
        model: folder of the weights.
        record: of the run, see `dpft.runs.RunRecord`.
    """
    privacy, training = record.get("privacy"), record["training"]
    task = record["dataset"]["task"]
    if not training["steps"]:
        trained = []
    elif privacy:
        trained = [f"{_MARK} on {task}: {privacy['statement']}"]
    else:
        trained = [f"{_MARK} on {task} without privacy"]
    content = {"labels": [*record.get("labels", []), *trained]}
    (model / FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def ancestry(folder: Path) -> tuple[str, ...]:
    """What every number of a model that goes on from this one must say; empty for other models."""
    try:
        labels = json.loads((folder / FILE).read_text(encoding="utf-8"))["labels"]
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return tuple(str(label) for label in labels)


def is_trained_before(label: str) -> bool:
    """Whether a label says that a run's base was trained by another run."""
    return label.startswith(_MARK)


def ancestral_caveats(labels: tuple[str, ...]) -> list[str]:
    """What a guarantee must say of a base that was trained before."""
    if not any(map(is_trained_before, labels)):
        return []
    return [
        "the base model was trained before, on data that this guarantee does not cover; what it "
        "learned of a record there, this run's epsilon does not bound: for records that both were "
        "trained on the two costs add up, and if the first had no privacy there is none"
    ]
