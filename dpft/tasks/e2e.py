"""E2E NLG (Novikova et al. 2017): a meaning representation in, a restaurant sentence out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from dpft.config.errors import DataError
from dpft.tasks.objectives.objective import Instance, Prediction, texts
from dpft.tasks.objectives.record_types import TextRecord
from dpft.tasks.samples.restaurants import FILES, write_csv, write_csvs
from dpft.tasks.sources import CONVERTED, SAME_SPLITS, Dataset, Form, Hub, one_by_one, well_formed
from dpft.tasks.table_files import read_separated
from dpft.tasks.task import Generation

_SLOT = re.compile(r"\s*([^\[\],][^\[\]]*?)\[([^\]]*)\]\s*(?:,|$)")
Row = tuple[str, str]


def read_csv(path: Path) -> list[Row]:
    """Read rows ``(mr, ref)`` of an official file."""
    rows = []
    for row in read_separated(path, ","):
        if [*row.values] != ["mr", "ref"]:
            raise DataError(f"{path} has columns {', '.join(row.values)}; expected mr,ref")
        rows.append(_checked([*row.values.values()], row.place))
    return rows


def _checked(row: Sequence[Any], where: str) -> Row:
    mr, reference = row
    if not all(isinstance(text, str) and text.strip() for text in row):
        raise DataError(f"{where}: got {row!r}; expected a meaning representation and a reference")
    if rest := _SLOT.sub("", mr).strip():
        raise DataError(
            f"{where}: got {rest!r} in meaning representation {mr!r}; expected attributes of the "
            "form name[value], ..."
        )
    return mr, well_formed(reference, where)


def _from_hub(row: Mapping[str, Any], where: str) -> Row:
    return _checked((row["meaning_representation"], row["human_reference"]), where)


def linearise(mr: str) -> str:
    """Return ``"name[Aromi], area[riverside]"`` as ``"name : Aromi | area : riverside"``.

    The form of Li & Liang 2021, whose files, which Li et al. 2022 used, name some attributes
    otherwise and hold tokenised references (docs/reference/tasks/e2e.md).
    """
    slots = ((match[1].strip(), match[2].strip()) for match in _SLOT.finditer(mr))
    return " | ".join(f"{name} : {value}" for name, value in slots)


@dataclass(frozen=True)
class E2E(Generation):
    """Describe restaurants; see ``conf/task/e2e.yaml``."""

    max_length: int = 100

    name = "e2e"
    written_as = "trainset.csv"
    record_is = "one row of the training file: a meaning representation with one reference sentence"
    dataset = Dataset(
        (Form({split: file for file, split, _ in FILES}, read_csv),),
        Hub("tuetschek/e2e_nlg", SAME_SPLITS, one_by_one(_from_hub), revision=CONVERTED),
        write_csvs,
    )

    def record(self, row: Row) -> TextRecord:
        mr, reference = row
        return TextRecord((linearise(mr),), reference)

    def write_records(self, rows: Sequence[Row] | None, targets: Sequence[str], path: Path) -> None:
        """Write a file that `read_csv` reads, with the meaning representations as they were."""
        write_csv(path, zip((mr for mr, _ in rows or ()), targets, strict=True))

    def instances(self, split: str) -> list[Instance]:
        """Return runs of consecutive rows with one meaning representation, as the scorer's."""
        runs = [list(run) for _, run in groupby(self.rows(split), key=lambda row: row[0])]
        return [
            Instance(self.record(run[0]), tuple(reference for _, reference in run))
            for run in runs[: self.limit_eval]
        ]

    def score(self, predictions: Sequence[Prediction]) -> dict[str, float]:
        from dpft.tasks.metrics import e2e_scores

        return e2e_scores.score(*texts(predictions))

    def signature(self) -> str:
        from dpft.tasks.metrics import e2e_scores

        return e2e_scores.signature()
