"""Marks: letters that keep a number from being taken for more than it is."""

from collections.abc import Iterable
from enum import Enum
from pathlib import PurePosixPath

from dpft.config.flags import TRAINED_BASE, Flag, has
from dpft.config.published import is_other_size, is_part
from dpft.config.schema import Audit, build
from dpft.reproduce.tables.plan import PlannedRun
from dpft.reproduce.tables.record_index import IndexedRun

_GENERATED = (Flag.SAMPLE_DATA, Flag.SYNTHETIC_DATA)
_PART_OR_OTHER = (Flag.LIMITED_TRAIN, Flag.LIMITED_EVAL, Flag.OTHER_FILES, Flag.LOSSY_COPIES)
_STAND_INS = (Flag.BUNDLED_MODEL, Flag.STAND_IN_MODEL, Flag.QUANTISED_WEIGHTS, *TRAINED_BASE)


class Mark(Enum):
    """A letter for the cell, and its meaning in the legend."""

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
    """Return the marks of records of a planned run, by their flags, settings and counts.

    A model that stands in for the paper's is marked, though the scale asks for it.
    """
    marks = {Mark.OTHER} if planned.altered else set()
    for one in found:
        config, flags = one.record["config"], one.record.get("flags", [])
        task = config["task"]
        limited = task.get("limit_train") is not None or task.get("limit_eval") is not None
        other = has(flags, *_PART_OR_OTHER)
        if limited or other or _is_other_size(one, planned) or is_part(one.record, split):
            marks.add(Mark.SUBSET)
        if has(flags, *_GENERATED) or task.get("source") == "sample":
            marks.add(Mark.GENERATED)
        base = one.record.get("model", {}).get("base_model") or config["model"]["path"]
        # A copy in a folder has the name of the model on the hub.
        is_papers = PurePosixPath(base).name == PurePosixPath(planned.paper_model).name
        if not is_papers or has(flags, *_STAND_INS):
            marks.add(Mark.MODEL)
        if "shuffled" in one.record["privacy"]["voided_by"]:
            marks.add(Mark.SHUFFLED)
    return marks


def _is_other_size(one: IndexedRun, planned: PlannedRun) -> bool:
    """Return whether the training records are not as many as the published set has."""
    count = one.record["dataset"]["counts"].get("train")
    if count is None or planned.train_size is None:
        return False
    audit = build(Audit, one.record["config"].get("audit", {}), "audit")
    return is_other_size(count - audit.planted, planned.train_size)
