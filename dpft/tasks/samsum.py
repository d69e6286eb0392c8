"""SAMSum (Gliwa et al. 2019): a chat in, a summary out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft.config.errors import DataError
from dpft.tasks.metrics import scorers
from dpft.tasks.objectives.objective import Prediction, text_room, texts
from dpft.tasks.objectives.record_types import TextRecord
from dpft.tasks.samples.texts import entries, write_samsum
from dpft.tasks.sources import SAME_SPLITS, Dataset, Form, Hub, one_by_one, well_formed
from dpft.tasks.table_files import read_table
from dpft.tasks.task import Generation

if TYPE_CHECKING:
    from dpft.models.load import LoadedModel
    from dpft.tasks.objectives.causal import Causal

# The prompt of He et al. 2022, appendix C.2. Where lines end is not printed there.
INSTRUCTION = "Summarize the following dialogue\n"
DELIMITER = "\nTL;DR"

_ENTRY = '{"id": ..., "dialogue": "...", "summary": "..."}'
Row = tuple[str, str]


def read_rows(path: Path) -> list[Row]:
    """Read rows ``(dialogue, summary)`` of a file that is one JSON list, or of JSON lines."""
    return [_row(row.values, row.place) for row in read_table(path)]


def _row(entry: Any, where: str) -> Row:
    """Return the texts of an entry, with plain line ends and without space around them.

    A dialogue may be empty: one of the published training file is. Copies in CSV have None there.
    """
    dialogue, summary = "", ""
    if isinstance(entry, Mapping) and {"dialogue", "summary"} <= entry.keys():
        dialogue, summary = entry["dialogue"] or "", entry["summary"]
    if not isinstance(dialogue, str) or not isinstance(summary, str) or not summary.strip():
        raise DataError(f"{where}: got {str(entry)[:60]}; expected {_ENTRY}, summary not empty")
    dialogue = well_formed(dialogue, where).replace("\r\n", "\n").strip()
    return dialogue, well_formed(summary, where).strip()


@dataclass(frozen=True)
class SAMSum(Generation):
    """Summarise chats; see ``conf/task/samsum.yaml``."""

    max_length: int = 512

    name = "samsum"
    written_as = "train.json"
    record_is = "one dialogue with its summary"
    dataset = Dataset(
        (
            Form({"train": "train.json", "dev": "val.json", "test": "test.json"}, read_rows),
            Form({one: f"{name}.jsonl" for one, name in SAME_SPLITS.items()}, read_rows),
        ),
        Hub("knkarthick/samsum", SAME_SPLITS, one_by_one(_row)),
        write_samsum,
    )

    def record(self, row: Row) -> TextRecord:
        dialogue, summary = row
        return TextRecord((dialogue,), summary)

    def write_records(self, rows: Sequence[Row] | None, targets: Sequence[str], path: Path) -> None:
        """Write a file that `read_rows` reads."""
        pairs = zip((dialogue for dialogue, _ in rows or ()), targets, strict=True)
        path.write_text(json.dumps(entries(pairs), ensure_ascii=False, indent=1), encoding="utf-8")

    def objective(self, loaded: LoadedModel) -> Causal:
        # A small model may have fewer positions than the task allows tokens.
        room = text_room(loaded.model)
        if room is not None and room < self.max_length:
            return replace(self, max_length=room).objective(loaded)
        return super().objective(loaded)

    @property
    def prompt_settings(self) -> Mapping[str, Any]:
        return {"before": INSTRUCTION, "after": DELIMITER, "ends": False, "cut": "source"}

    def score(self, predictions: Sequence[Prediction]) -> dict[str, float]:
        return scorers.rouge(*texts(predictions))

    def signature(self) -> str:
        return scorers.ROUGE
