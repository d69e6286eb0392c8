"""Four tasks of GLUE (Wang et al. 2019): SST-2, QNLI, QQP and MNLI.

The published validation split is ``dev``. GLUE keeps the labels of its test splits to itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from dpft.config.errors import DataError, SplitError
from dpft.tasks.classification import Classification, Row, answers
from dpft.tasks.metrics import classification
from dpft.tasks.objectives.base import Instance, Prediction, Question
from dpft.tasks.objectives.records import LabelledText
from dpft.tasks.samples.glue import write
from dpft.tasks.sources import Dataset, Form, Hub, parquet, parquet_form, text_lines

# A file with more broken lines than this share is another file than GLUE's.
_BROKEN = 1e-3


@dataclass(frozen=True)
class Columns:
    """Where texts and label stand in a file's header.

    Attributes:
        texts: columns of the texts.
        label: column of the label.
        values: what stands there for each class, in the order of labels.
        lenient: whether lines with another number of fields than the header are left out, and empty
            texts kept, as loaders of GLUE do with QQP, rather than refused.
    """

    texts: tuple[str, ...]
    label: str
    values: tuple[str, ...]
    lenient: bool = False


def read_tsv(path: Path, columns: Columns, subset: str = "") -> list[Row]:
    """Labelled rows of one of GLUE's files: tab-separated, quotes without meaning.

    Raises:
        DataError: naming file and line, if the file is missing, empty, not UTF-8, lacks a column,
            or has a row of another number of fields, an empty text, or an unknown label.
    """
    wanted = f"a GLUE file with columns {', '.join((*columns.texts, columns.label))}"
    return list(_rows(path, text_lines(path, wanted), columns, subset))


def _rows(path: Path, lines: Iterable[str], columns: Columns, subset: str) -> Iterator[Row]:
    names = (*columns.texts, columns.label)
    for number, line, cells in _cells(path, lines, names, columns.lenient):
        *texts, label = (cells[name].strip() for name in names)
        if not all(texts) and not columns.lenient:
            raise DataError(
                f"{path}, line {number}: got an empty text ({line[:60]!r}); expected "
                f"{', '.join(columns.texts)} to have words"
            )
        if label not in columns.values:
            raise DataError(
                f"{path}, line {number}: got {columns.label} {label!r}; expected one of "
                f"{', '.join(columns.values)}"
            )
        yield Row(tuple(texts), columns.values.index(label), subset)


def _cells(
    path: Path, lines: Iterable[str], names: Sequence[str], lenient: bool = False
) -> Iterator[tuple[int, str, Mapping[str, str]]]:
    """Number, text and cells by column of each line that is not blank."""
    numbered = enumerate(lines, 1)
    header = next(numbered)[1].split("\t")
    if not set(names) <= set(header):
        got = f"columns {', '.join(header)}" if header != [""] else "no header"
        raise DataError(f"{path}, line 1: got {got}; expected {', '.join(names)}")
    good, broken = 0, []
    for number, line in numbered:
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != len(header):
            if not lenient:
                raise DataError(
                    f"{path}, line {number}: got {len(fields)} tab-separated fields "
                    f"({line[:60]!r}); expected {len(header)}"
                )
            broken.append(number)
            continue
        good += 1
        yield number, line, dict(zip(header, fields, strict=True))
    if len(broken) > max(1, _BROKEN * good):
        raise DataError(
            f"{path}, line {broken[0]}: this and {len(broken) - 1} other lines of {good} have not "
            f"{len(header)} tab-separated fields; expected at most one in {1 / _BROKEN:g}, as in "
            "GLUE's file"
        )
    if not good:
        raise DataError(f"{path} has a header but no rows; expected at least one record")


def read_hub(
    rows: Iterable[Mapping[str, Any]], texts: tuple[str, ...], classes: int, subset: str = ""
) -> list[Row]:
    """Rows of the hub's copy, whose labels are the indices of the classes already.

    Raises:
        DataError: for a row without a label, as in the hub's test split, or a missing column.
    """
    found = []
    for number, row in enumerate(rows, 1):
        missing = [name for name in (*texts, "label") if name not in row]
        if missing:
            raise DataError(
                f"the hub's copy has columns {', '.join(row)}; expected {', '.join(texts)}, label"
            )
        if row["label"] not in range(classes):
            raise DataError(
                f"row {number} of the hub's copy has the label {row['label']}; expected 0 to "
                f"{classes - 1}"
            )
        for name in texts:
            if not isinstance(row[name], str):
                raise DataError(
                    f"row {number} of the hub's copy has the {name} {row[name]!r}; expected text"
                )
        found.append(Row(tuple(row[name].strip() for name in texts), row["label"], subset))
    return found


def _read_hub_mnli(rows: Iterable[Mapping[str, Any]], subset: str = "matched") -> list[Row]:
    """MNLI's validation rows: the mismatched ones follow, and number themselves from 0 again.

    Args:
        rows: of the hub's form.
        subset: that the first belong to; "": training rows, which are of neither and in any order.

    Raises:
        DataError: if rows of a validation split are not in their published order.
    """
    rows = list(rows)
    numbers = [row.get("idx", i) for i, row in enumerate(rows)]
    texts = ("premise", "hypothesis")
    falls = [i for i in range(1, len(rows)) if subset and numbers[i] <= numbers[i - 1]]
    if len(falls) > 1 or (falls and numbers[falls[0]] != 0):
        raise DataError(
            f"row {falls[0] + 1} of the hub's copy has idx {numbers[falls[0]]} after "
            f"{numbers[falls[0] - 1]}; expected rising numbers, or 0 once, where the mismatched "
            "rows begin: which rows are matched cannot be told from rows in another order"
        )
    second = falls[0] if falls else len(rows)
    return [
        *read_hub(rows[:second], texts, 3, subset),
        *read_hub(rows[second:], texts, 3, "mismatched"),
    ]


def _subset(path: Path) -> str:
    """``matched``, ``mismatched``, or nothing where a file's name does not say."""
    for name in ("mismatched", "matched"):
        if name in path.name:
            return name
    return ""


def _dataset(name: str, columns: Columns) -> Dataset:
    """The files and the hub's copy, whose texts have the same names, with one validation file."""
    return Dataset(
        forms=(Form({"train": "train.tsv", "dev": "dev.tsv"}, partial(read_tsv, columns=columns)),),
        hub=Hub(
            "nyu-mll/glue",
            {"train": "train", "dev": "validation"},
            partial(read_hub, texts=columns.texts, classes=len(columns.values)),
            config=name,
        ),
        write_sample=partial(write, name),
    )


@dataclass(frozen=True)
class Glue(Classification):
    """A task of GLUE: its test split has no labels."""

    columns: ClassVar[Columns]

    def questions(self, path: Path) -> Sequence[Question]:
        """Lines of one of GLUE's files, such as those of a test split, which have no label.

        Raises:
            DataError: as `read_tsv`, and for every line of other fields than the header's.
        """
        if path.suffix != ".tsv":
            return super().questions(path)
        names = self.columns.texts
        lines = text_lines(path, f"a GLUE file with columns {', '.join(names)}")
        return [
            Question(cells, Instance(LabelledText(tuple(cells[n].strip() for n in names), 0), ()))
            for _, _, cells in _cells(path, lines, names)
        ]

    def rows(self, split: str) -> Sequence[Row]:
        if split == "test":
            raise SplitError(
                f"GLUE publishes no labels of {self.name}'s test split; expected train or dev, "
                "which is the published validation split: type decode.split=dev"
            )
        return super().rows(split)


@dataclass(frozen=True)
class SST2(Glue):
    """Sentiment of a sentence of a film review; see ``conf/task/sst2.yaml``."""

    template: str = "<S1> It was [MASK] ."
    label_words: Mapping[str, str] = field(
        default_factory=lambda: {"negative": "terrible", "positive": "great"}
    )

    name = "sst2"
    record_is = "one row of the training file: a phrase of a film review with its sentiment"
    classes = ("negative", "positive")
    texts = 1
    columns = Columns(("sentence",), "label", ("0", "1"))
    dataset = _dataset("sst2", columns)


@dataclass(frozen=True)
class QNLI(Glue):
    """Does the sentence hold the answer to the question; see ``conf/task/qnli.yaml``."""

    template: str = "<S1> ? [MASK] , <S2>"
    label_words: Mapping[str, str] = field(
        default_factory=lambda: {"entailment": "Yes", "not_entailment": "No"}
    )

    name = "qnli"
    record_is = "one row of the training file: a question and a sentence with their label"
    classes = ("entailment", "not_entailment")
    texts = 2
    columns = Columns(("question", "sentence"), "label", classes)
    dataset = _dataset("qnli", columns)


@dataclass(frozen=True)
class QQP(Glue):
    """Do two questions ask the same; see ``conf/task/qqp.yaml``."""

    template: str = "<S1> [MASK] , <S2>"
    label_words: Mapping[str, str] = field(
        default_factory=lambda: {"not_duplicate": "No", "duplicate": "Yes"}
    )

    name = "qqp"
    record_is = "one row of the training file: two questions with their label"
    classes = ("not_duplicate", "duplicate")
    texts = 2
    columns = Columns(("question1", "question2"), "is_duplicate", ("0", "1"), lenient=True)
    dataset = _dataset("qqp", columns)

    def score(self, predictions: Sequence[Prediction]) -> Mapping[str, float | None]:
        """``accuracy``, and ``f1`` of the class ``duplicate``."""
        f1 = classification.f1(*answers(predictions, self.classes), "duplicate")
        return {**super().score(predictions), "f1": f1}


@dataclass(frozen=True)
class MNLI(Glue):
    """Does the premise entail the hypothesis; see ``conf/task/mnli.yaml``."""

    template: str = "<S1> ? [MASK] , <S2>"
    label_words: Mapping[str, str] = field(
        default_factory=lambda: {"entailment": "Yes", "neutral": "Maybe", "contradiction": "No"}
    )

    name = "mnli"
    record_is = "one row of the training file: a premise and a hypothesis with their label"
    classes = ("entailment", "neutral", "contradiction")
    texts = 2
    columns = Columns(("sentence1", "sentence2"), "gold_label", classes)
    dataset = Dataset(
        forms=(
            # Matched before mismatched, by name.
            Form(
                {"train": "train.tsv", "dev": "dev_m*atched.tsv"},
                lambda path: read_tsv(path, MNLI.columns, _subset(path)),
            ),
            # A part of the data set, whose validation rows are neither.
            Form({"dev": "dev.tsv"}, partial(read_tsv, columns=columns)),
            parquet_form(
                {"train": ("train",), "dev": ("validation_matched", "validation_mismatched")},
                lambda path: _read_hub_mnli(parquet(path), _subset(path)),
            ),
        ),
        hub=Hub(
            "nyu-mll/glue",
            {"train": "train", "dev": "validation_matched+validation_mismatched"},
            _read_hub_mnli,
            config="mnli",
        ),
        write_sample=partial(write, "mnli"),
    )
