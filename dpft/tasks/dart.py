"""DART (Nan et al. 2021): triples of subject, relation and object in, a sentence out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

from dpft.config.errors import DataError, SplitError, one_of
from dpft.config.flags import Flag, Stored, flag
from dpft.tasks.base import Generation
from dpft.tasks.objectives.base import Instance, Prediction, texts
from dpft.tasks.objectives.records import TextRecord
from dpft.tasks.samples.texts import Triple, write_dart, write_triples
from dpft.tasks.sources import CONVERTED, SAME_SPLITS, Dataset, Form, Hub, well_formed
from dpft.tasks.table_files import read_objects

_JSON = (
    'a JSON list of {"tripleset": [[subject, relation, object], ...], "annotations": [{"text": '
    '"..."}, ...]}'
)


class Lexicalisation(NamedTuple):
    """A triple set with one reference."""

    entry: int  # number of its triple set in the file, from 0; of several parts in each of them
    triples: tuple[Triple, ...]  # subject, relation and object of each
    text: str  # a reference sentence; "" where the file has an empty one, or none at all

    @property
    def whole(self) -> tuple[int, tuple[Triple, ...]]:
        """Return the triple set that it is of."""
        return self.entry, self.triples


def read_json(path: Path) -> list[Lexicalisation]:
    """Read rows of a published JSON file."""
    rows: list[Lexicalisation] = []
    for number, row in enumerate(read_objects(path)):
        if not {"tripleset", "annotations"} <= set(row.values):
            raise DataError(f"{row.place}: got {str(row.values)[:60]}; expected {_JSON}")
        listed = row.values["annotations"]
        whole = isinstance(listed, list) and all(
            isinstance(x, Mapping) and "text" in x for x in listed
        )
        if not whole:
            raise DataError(f"{row.place}: got annotations {str(listed)[:60]}; expected {_JSON}")
        texts = [annotation["text"] for annotation in listed]
        rows += _rows(number, row.values["tripleset"], texts, row.place)
    return rows


def _rows(number: int, triples: Any, texts: Sequence[Any], where: str) -> list[Lexicalisation]:
    """Return rows of one triple set, with no space around the parts of triples and the texts."""
    fits = isinstance(triples, Sequence) and len(triples) > 0
    if not fits or not all(
        isinstance(triple, Sequence)
        and len(triple) == 3
        and all(isinstance(part, str) and part.strip() for part in triple)
        for triple in triples
    ):
        raise DataError(
            f"{where}: got tripleset {str(triples)[:60]}; expected one or more of subject, "
            "relation and object, none empty"
        )
    for part in (*texts, *chain(*triples)):
        if not isinstance(part, str):
            raise DataError(f"{where}: got reference {str(part)[:60]}; expected a text")
        well_formed(part, where)
    whole = tuple((s.strip(), r.strip(), o.strip()) for s, r, o in triples)
    return [Lexicalisation(number, whole, text.strip()) for text in texts or [""]]


def _from_hub(rows: Iterable[Mapping[str, Any]]) -> list[Lexicalisation]:
    """Read rows of GEM's copy: ``references`` for evaluation, one ``target`` for training."""
    out: list[Lexicalisation] = []
    for number, row in enumerate(rows):
        texts = list(row.get("references") or [row["target"]])
        out += _rows(number, row["tripleset"], texts, f"the hub's copy, row {number + 1}")
    return out


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
    and one instance. Empty references are left out, and so are triple sets without a reference.
    """

    max_length: int = 120
    train_split: str = "train"
    bertscore: str | None = None
    bleurt: str | None = None

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
    def _trains_on_dev(self) -> bool:
        return self.train_split == "dev" and self.synthetic is None

    @property
    def published_train(self) -> str:
        return "dev" if self._trains_on_dev else "train"

    def rows(self, split: str) -> Sequence[Lexicalisation]:
        """Return rows of a split that have a reference; those of ``train`` from ``train_split``."""
        return [row for row in self._published(split) if row.text]

    def _published(self, split: str) -> Sequence[Lexicalisation]:
        if self._trains_on_dev and split == "dev":
            raise SplitError(
                "task.train_split=dev makes the dev split the training data; expected another "
                "split to evaluate on. Type decode.split=test, or task.train_split=train"
            )
        return super().rows(self.published_train if split == "train" else split)

    def record(self, row: Lexicalisation) -> TextRecord:
        return TextRecord((linearise(row.triples),), row.text)

    def records_of(self, path: Path) -> list[TextRecord]:
        return [self.record(row) for row in self.read_file(path) if row.text]

    def instances(self, split: str) -> list[Instance]:
        """Return triple sets in the order of the file, each with all its references."""
        groups = [list(group) for _, group in groupby(self.rows(split), key=lambda row: row.whole)]
        return [
            Instance(self.record(group[0]), tuple(row.text for row in group))
            for group in groups[: self.limit_eval]
        ]

    def write_records(self, rows: Sequence[Any] | None, targets: Sequence[str], path: Path) -> None:
        """Write a file that `read_json` reads, with the triples as they were read."""
        pairs = [(row.triples, [target]) for row, target in zip(rows or (), targets, strict=True)]
        write_triples(path, pairs, source="synthetic")

    def flags(self) -> list[Stored]:
        flags = super().flags()
        return [*flags, flag(Flag.TRAINED_ON_DEV)] if self._trains_on_dev else flags

    def details(self, split: str) -> list[str]:
        """Return how many references and triple sets were left out."""
        published = self._published(split)
        given = {row.whole for row in published if row.text}
        bare = {row.whole for row in published} - given
        empty = sum(not row.text and row.whole in given for row in published)
        left_out = {"empty references": empty, "triple sets without a reference": len(bare)}
        return [f"{count:,} {what} left out" for what, count in left_out.items() if count]

    def score(self, predictions: Sequence[Prediction]) -> dict[str, float | None]:
        from dpft.tasks.metrics import gem

        return gem.score(*texts(predictions), self.bertscore, self.bleurt)

    def signature(self) -> str:
        from dpft.tasks.metrics import gem

        return gem.signature(self.bertscore, self.bleurt)
