"""DART (Nan et al. 2021): triples of subject, relation and object in, a sentence out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

from dpft.config.errors import DataError, SplitError, one_of
from dpft.tasks.generation import Generation
from dpft.tasks.json_list import entries
from dpft.tasks.objectives.base import Instance, Prediction, Question, texts
from dpft.tasks.objectives.records import TextRecord
from dpft.tasks.samples.dart import write_files
from dpft.tasks.sources import Dataset, Form, Hub, well_formed
from dpft.tasks.triples import Triple, write_json

_JSON = 'a JSON list of {"tripleset": [[subject, relation, object], ...], "annotations": [...]}'
_XML = "<entry> elements with <mtriple>subject | relation | object</mtriple> and <lex>text</lex>"


class Lexicalisation(NamedTuple):
    """One lexicalisation.

    Attributes:
        entry: number of its triple set in the file, from 0; of several parts in each of them.
        triples: subject, relation and object of each.
        text: a reference sentence; "" where the file has an empty one, or none at all.
    """

    entry: int
    triples: tuple[Triple, ...]
    text: str

    @property
    def whole(self) -> tuple[int, tuple[Triple, ...]]:
        """The triple set that it is of."""
        return self.entry, self.triples


def read_json(path: Path, asked: bool = False) -> list[Lexicalisation]:
    """Rows of a published JSON file; where they are only asked, annotations may be missing.

    Raises:
        DataError: naming file, line and entry.
    """
    rows: list[Lexicalisation] = []
    for number, (where, entry) in enumerate(entries(path, _JSON)):
        if asked and isinstance(entry, Mapping):
            entry = {"annotations": [], **entry}
        if not isinstance(entry, Mapping) or not {"tripleset", "annotations"} <= set(entry):
            raise DataError(f"{where}: got {str(entry)[:60]}; expected {_JSON}")
        rows += _rows(number, entry["tripleset"], _annotated(entry["annotations"], where), where)
    if not rows:
        raise DataError(f"{path} is an empty list; expected {_JSON}")
    return rows


def read_xml(path: Path) -> list[Lexicalisation]:
    """Rows of a published XML file, in the form of the WebNLG challenge.

    Raises:
        DataError: naming file and line.
    """
    reader = _Entries(path)
    try:
        with path.open("rb") as file:
            reader.parser.ParseFile(file)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; expected {_XML}") from error
    except expat.ExpatError as error:
        problem = expat.errors.messages[error.code]
        raise DataError(f"{path}, line {error.lineno}: {problem}; expected {_XML}") from error
    if not reader.rows:
        raise DataError(f"{path} holds no <entry>; expected {_XML}")
    return reader.rows


class _Entries:
    """Collects rows while expat reads a file; `xml.etree` would not tell lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Lexicalisation] = []
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._data
        # Entities may name each other, and a line of them becomes a text that fills the memory.
        self.parser.EntityDeclHandler = self._refuse_entity
        self._number, self._line = 0, 0
        self._triples: list[Any] = []
        self._texts: list[str] = []
        self._words: list[str] = []

    def _refuse_entity(self, name: str, *_: Any) -> None:
        line = self.parser.CurrentLineNumber
        raise DataError(f"{self.path}, line {line}: declares an entity {name!r}; expected {_XML}")

    def _start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._words = []
        if tag == "entry":
            self._line = self.parser.CurrentLineNumber
            self._triples, self._texts = [], []

    def _data(self, words: str) -> None:
        self._words.append(words)

    def _end(self, tag: str) -> None:
        text = "".join(self._words)
        if tag == "mtriple":
            self._triples.append(text.split(" | "))
        elif tag == "lex":
            self._texts.append(text)
        elif tag == "entry":
            where = f"{self.path}, line {self._line}"
            self.rows += _rows(self._number, self._triples, self._texts, where)
            self._number += 1


def _rows(number: int, triples: Any, texts: Sequence[Any], where: str) -> list[Lexicalisation]:
    """Rows of one triple set, with no space around the parts of triples and the texts."""
    if not isinstance(triples, Sequence) or isinstance(triples, str) or not triples:
        raise DataError(f"{where}: got tripleset {str(triples)[:60]!r}; expected one or more")
    for triple in triples:
        parts = isinstance(triple, Sequence) and not isinstance(triple, str) and len(triple) == 3
        if not parts or not all(isinstance(part, str) and part.strip() for part in triple):
            raise DataError(
                f"{where}: got triple {str(triple)[:60]}; expected subject, relation and object, "
                "none empty"
            )
    for text in texts:
        if not isinstance(text, str):
            raise DataError(f"{where}: got reference {str(text)[:60]}; expected a text")
    for part in (*texts, *(part for triple in triples for part in triple)):
        well_formed(part, where)
    whole = tuple((s.strip(), r.strip(), o.strip()) for s, r, o in triples)
    return [Lexicalisation(number, whole, text.strip()) for text in texts or [""]]


def _annotated(annotations: Any, where: str) -> list[Any]:
    """Texts of annotations, which parquet may hold as one mapping of lists."""
    if isinstance(annotations, Mapping) and isinstance(annotations.get("text"), Sequence):
        return list(annotations["text"])
    if isinstance(annotations, Sequence) and all(
        isinstance(annotation, Mapping) and "text" in annotation for annotation in annotations
    ):
        return [annotation["text"] for annotation in annotations]
    raise DataError(
        f'{where}: got annotations {str(annotations)[:60]}; expected [{{"source": "...", "text": '
        '"..."}, ...]'
    )


def _from_hub(rows: Iterable[Mapping[str, Any]]) -> list[Lexicalisation]:
    """Rows of GEM's copy: ``references`` of an evaluation split, one ``target`` of training.

    Columns named as in the published JSON are read too.
    """
    out: list[Lexicalisation] = []
    for number, row in enumerate(rows):
        where = f"the hub's copy, row {number + 1}"
        if "annotations" in row:
            texts = _annotated(row["annotations"], where)
        else:
            texts = list(row.get("references") or [row["target"]])
        out += _rows(number, row["tripleset"], texts, where)
    return out


def linearise(triples: Iterable[Triple]) -> str:
    """The prompt text: ``"Copper Fox : launched : 1953 | Copper Fox : crew : 40"``.

    As in the code of Li and Liang 2021, which Li et al. 2022 use: relations in lower case, and
    otherwise as they are, underscores included.
    """
    return " | ".join(
        f"{subject} : {relation.lower()} : {obj}" for subject, relation, obj in triples
    )


def _files(suffix: str) -> dict[str, str]:
    return {split: f"dart-v1.1.1-full-{split}.{suffix}" for split in ("train", "dev", "test")}


@dataclass(frozen=True)
class DART(Generation):
    """Sentences about triples; see ``conf/task/dart.yaml``.

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
        forms=(Form(_files("json"), read_json), Form(_files("xml"), read_xml)),
        hub=Hub(
            "GEM/dart",
            {"train": "train", "dev": "validation", "test": "test"},
            _from_hub,
            revision="refs/convert/parquet",
        ),
        write_sample=write_files,
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
        """Rows of a split that have a reference; those of ``train`` from ``train_split``.

        Raises:
            DataError: also for ``dev`` if that is what is trained on.
        """
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

    def questions(self, path: Path) -> Sequence[Question]:
        """Of a published file, or of one without references."""
        if path.suffix != ".json":
            return super().questions(path)
        records = map(self.record, read_json(path, asked=True))
        return [Question({"source": one.source}, Instance(one, ())) for one in records]

    def records_of(self, path: Path) -> list[TextRecord]:
        return [self.record(row) for row in self.read_file(path) if row.text]

    def instances(self, split: str) -> list[Instance]:
        """Triple sets as they stand in the file, each with all its references."""
        groups = [list(group) for _, group in groupby(self.rows(split), key=lambda row: row.whole)]
        return [
            Instance(self.record(group[0]), tuple(row.text for row in group))
            for group in groups[: self.limit_eval]
        ]

    def write_records(
        self, rows: Sequence[Lexicalisation] | None, targets: Sequence[str], path: Path
    ) -> None:
        """A file that `read_json` reads: the triples as they were read."""
        assert rows is not None
        write_json(
            path,
            [(row.triples, [target]) for row, target in zip(rows, targets, strict=True)],
            source="synthetic",
        )

    def labels(self) -> list[str]:
        labels = super().labels()
        return [*labels, "trained on the dev split"] if self._trains_on_dev else labels

    def details(self, split: str) -> list[str]:
        """How many references and triple sets were left out."""
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
