"""DART (Nan et al. 2021): triples of subject, relation and object in, a sentence out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from dpft.config.errors import DataError, SplitError, one_of
from dpft.config.flags import Flag, Stored, flag
from dpft.tasks.objectives.objective import Instance, Prediction, texts
from dpft.tasks.objectives.record_types import TextRecord
from dpft.tasks.samples.texts import Triple, write_dart, write_triples
from dpft.tasks.sources import CONVERTED, SAME_SPLITS, Dataset, Form, Hub, well_formed
from dpft.tasks.table_files import brief, read_objects
from dpft.tasks.task import Generation

_JSON = (
    'a JSON list of {"tripleset": [[subject, relation, object], ...], "annotations": [{"text": '
    '"..."}, ...]}, no part of a triple empty'
)


class Lexicalisation(NamedTuple):
    """A triple set with one reference."""

    entry: int  # number of its triple set in the file, from 0; of several parts in each of them
    triples: tuple[Triple, ...]  # subject, relation and object of each
    text: str  # a reference sentence, not empty


def read_json(path: Path) -> list[Lexicalisation]:
    """Read rows of a published JSON file; empty references are left out."""
    rows: list[Lexicalisation] = []
    for number, row in enumerate(read_objects(path)):
        try:
            references = [annotation["text"] for annotation in row.values["annotations"]]
            rows += _rows(number, row.values["tripleset"], references, row.place)
        except (KeyError, TypeError) as error:
            raise DataError(f"{row.place}: got {brief(row.values)}; expected {_JSON}") from error
    return rows


def _from_hub(rows: Iterable[Mapping[str, Any]], split: str) -> list[Lexicalisation]:
    """Read rows of GEM's copy: ``references`` for evaluation, one ``target`` for training."""
    out: list[Lexicalisation] = []
    for number, row in enumerate(rows):
        references = list(row.get("references") or [row["target"]])
        place = f"the hub's copy, {split}, row {number + 1}"
        out += _rows(number, row["tripleset"], references, place)
    return out


def _rows(number: int, triples: Any, references: list[Any], where: str) -> list[Lexicalisation]:
    """Return rows of one triple set, with no space around the parts of triples and the texts."""
    parts = [part for triple in triples for part in triple]
    if (
        not triples
        or any(len(triple) != 3 for triple in triples)
        or not all(isinstance(text, str) for text in (*parts, *references))
        or not all(part.strip() for part in parts)
    ):
        raise DataError(f"{where}: got {brief(triples)} with {brief(references)}; expected {_JSON}")
    for text in (*parts, *references):
        well_formed(text, where)
    whole = tuple((s.strip(), r.strip(), o.strip()) for s, r, o in triples)
    return [Lexicalisation(number, whole, text.strip()) for text in references if text.strip()]


def linearise(triples: Iterable[Triple]) -> str:
    """Return the prompt text: ``"Copper Fox : launched : 1953 | Copper Fox : crew : 40"``.

    As in the code of Li and Liang 2021, which Li et al. 2022 use: relations in lower case, and
    otherwise as they are, underscores included.
    """
    return " | ".join(
        f"{subject} : {relation.lower()} : {obj}" for subject, relation, obj in triples
    )


@dataclass(frozen=True)
class DART(Generation):
    """Write sentences about triples; see ``conf/task/dart.yaml``.

    A row is one lexicalisation. A triple set with several references is several training records,
    and one instance.
    """

    max_length: int = 120
    train_split: str = "train"

    name = "dart"
    written_as = "dart-v1.1.1-full-train.json"
    record_is = "one lexicalisation: a triple set with one reference sentence"
    dataset = Dataset(
        (Form({s: f"dart-v1.1.1-full-{s}.json" for s in ("train", "dev", "test")}, read_json),),
        Hub("GEM/dart", SAME_SPLITS, _from_hub, revision=CONVERTED),
        write_sample=write_dart,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("task.train_split", self.train_split, ("train", "dev"))

    @property
    def published_train(self) -> str:
        return "train" if self.synthetic is not None else self.train_split

    def rows(self, split: str) -> Sequence[Lexicalisation]:
        """Return rows of a split; those of ``train`` are of ``train_split``."""
        if split == self.published_train == "dev":
            raise SplitError(
                "task.train_split=dev makes the dev split the training data; expected another "
                "split to evaluate on. Type decode.split=test, or task.train_split=train"
            )
        rows: Sequence[Lexicalisation] = super().rows(
            self.published_train if split == "train" else split
        )
        return rows

    def record(self, row: Lexicalisation) -> TextRecord:
        return TextRecord((linearise(row.triples),), row.text)

    def instances(self, split: str) -> list[Instance]:
        """Return triple sets in the order of the file, each with all its references."""
        groups = [list(group) for _, group in groupby(self.rows(split), lambda row: row[:2])]
        return [
            Instance(self.record(group[0]), tuple(row.text for row in group))
            for group in groups[: self.limit_eval]
        ]

    def write_records(self, rows: Sequence[Any] | None, targets: Sequence[str], path: Path) -> None:
        """Write a file that `read_json` reads, with the triples as they were read."""
        pairs = [(row.triples, [target]) for row, target in zip(rows or (), targets, strict=True)]
        write_triples(path, pairs, source="synthetic")

    def flags(self) -> list[Stored]:
        trained_on_dev = [flag(Flag.TRAINED_ON_DEV)] if self.published_train == "dev" else []
        return [*super().flags(), *trained_on_dev]

    def score(self, predictions: Sequence[Prediction]) -> dict[str, float]:
        from dpft.tasks.metrics import gem

        return gem.score(*texts(predictions))

    def signature(self) -> str:
        from dpft.tasks.metrics import gem

        return gem.signature()
