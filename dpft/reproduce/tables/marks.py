"""Marks: what must stand beside a number so that nobody takes it for more than it is."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from pathlib import PurePosixPath

from dpft.config.published import is_other_size, is_part
from dpft.config.schema import Audit, build
from dpft.reproduce.tables.plan import PlannedRun
from dpft.reproduce.tables.record_index import IndexedRun
from dpft.runs.lineage import is_trained_before

# As in dpft.tasks and dpft.models, which are not imported here: they take seconds.
_GENERATED = ("generated sample data", "synthetic training records")
_PART_OR_OTHER = (
    *("first ", "images from other files than the published ones", "lossy JPEG copies"),
)
_STAND_INS = ("bundled", "random stand-in model", "weights from a 4-bit file")


class Mark(Enum):
    """A letter for the cell, and what the legend says of it."""

    def __init__(self, letter: str, meaning: str) -> None:
        self.letter = letter
        self.meaning = meaning

    LAPTOP = ("L", "laptop scale: not the paper's setting")
    SUBSET = ("S", "trained or scored on a part of the data, or on other data")
    GENERATED = ("G", "generated or synthetic data")
    MODEL = ("M", "another model stands in for the paper's")
    BASELINE = ("B", "the printed number is from another paper; ours has this table's settings")
    OTHER = ("O", "overrides beside the table change its setting")
    SHUFFLED = ("H", "shuffled batches; epsilon computed for Poisson sampling")
    FEWER = ("F", "fewer seeds than asked for")
    NO_SPREAD = ("D", "no deviation known, on either side: judged by 1%")
    CONSTANT = ("C", "no better than always giving the most frequent answer: nothing was learned")
    WIDE = ("W", "seeds far apart: ours deviates more than twice the printed, or 5%")


# A number with one of these is not of the paper's own setting.
NOT_THE_PAPERS = frozenset({Mark.LAPTOP, Mark.SUBSET, Mark.GENERATED, Mark.MODEL, Mark.OTHER})


def marks_of(found: Iterable[IndexedRun], planned: PlannedRun, split: str) -> set[Mark]:
    """The marks that records of a planned run call for, by their labels, settings and counts.

    A model that stands in for the paper's is marked, though the scale asks for it.
    """
    marks = {Mark.OTHER} if planned.altered else set()
    for one in found:
        config, labels = one.record["config"], one.record.get("labels", [])
        task = config["task"]
        limited = task.get("limit_train") is not None or task.get("limit_eval") is not None
        other = any(label.startswith(_PART_OR_OTHER) for label in labels)
        if limited or other or _is_other_size(one, planned) or is_part(one.record, split):
            marks.add(Mark.SUBSET)
        if any(label in _GENERATED for label in labels) or task.get("source") == "sample":
            marks.add(Mark.GENERATED)
        base = one.record.get("model", {}).get("base_model") or config["model"]["path"]
        # A copy in a folder has the name of the model on the hub.
        is_papers = PurePosixPath(base).name == PurePosixPath(planned.paper_model).name
        if not is_papers or any(x.startswith(_STAND_INS) or is_trained_before(x) for x in labels):
            marks.add(Mark.MODEL)
        if "shuffled" in one.record["privacy"]["voided_by"]:
            marks.add(Mark.SHUFFLED)
    return marks


def _is_other_size(one: IndexedRun, planned: PlannedRun) -> bool:
    """Whether the training records are not as many as the published set has."""
    count = one.record["dataset"]["counts"].get("train")
    if count is None or planned.train_size is None:
        return False
    audit = build(Audit, one.record["config"].get("audit", {}), "audit")
    return is_other_size(count - audit.planted, planned.train_size)
