"""Tasks whose answers are classes: by a new head, or by a word that fills a blank. GLUE has four.

Of GLUE (Wang et al. 2019) there are SST-2, QNLI, QQP and MNLI. Its published validation split is
``dev``: GLUE keeps the labels of its test splits to itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dpft.config.errors import DataError, SplitError, one_of
from dpft.models.needs import Needs
from dpft.tasks import scores
from dpft.tasks.metrics import scorers
from dpft.tasks.objectives.objective import Instance, Prediction
from dpft.tasks.objectives.record_types import LabelledText, check_words, parse_template
from dpft.tasks.samples.texts import write_glue
from dpft.tasks.sources import Dataset, Form, Hub, one_by_one, text_lines
from dpft.tasks.task import Task

if TYPE_CHECKING:
    from dpft.models.load import LoadedModel
    from dpft.tasks.objectives.classifier import Classifier, Infilling


@dataclass(frozen=True)
class Classes(Task):
    """A task whose answers are names of classes, in the order of labels."""

    classes: ClassVar[tuple[str, ...]]

    def instance(self, record: Any) -> Instance:
        """Return a record as a question, with the name of its class as the reference."""
        return Instance(record, (self.classes[record.label],), getattr(record, "subset", ""))

    def score(self, predictions: Sequence[Prediction]) -> Mapping[str, float | None]:
        """Return ``accuracy``, or ``accuracy_SUBSET`` of each subset where there are any."""
        return {
            name: scorers.accuracy(*answers(chosen, self.classes))
            for name, chosen in _by_subset(predictions).items()
        }

    def additional_scores(self, predictions: Sequence[Prediction]) -> Mapping[str, Any]:
        return {
            "baselines": {
                name: scores.majority([p.references[0] for p in chosen])
                for name, chosen in _by_subset(predictions).items()
            },
            **scores.confused(*answers(predictions, self.classes), self.classes),
        }

    def signature(self) -> str:
        return scorers.CLASSES


@dataclass(frozen=True)
class Classification(Classes):
    """Classify one or two texts; a subclass names its classes. Its rows are `LabelledText`s."""

    max_length: int = 256
    mode: str = "head"
    template: str = ""
    label_words: Mapping[str, str] = field(default_factory=dict)

    texts: ClassVar[int]  # of a record

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("task.mode", self.mode, ("head", "infill"))
        if self.mode == "infill":
            check_words(self.label_words, self.classes)
            parse_template(self.template, self.texts)

    @property
    def needs(self) -> Needs:
        return Needs("classifier", self.classes) if self.mode == "head" else Needs("masked")

    def objective(self, loaded: LoadedModel) -> Classifier | Infilling:
        from dpft.tasks.objectives.classifier import Classifier, Infilling

        tokenizer = loaded.text_tokenizer
        if self.mode == "head":
            return Classifier(tokenizer, self.max_length, self.classes)
        return Infilling(tokenizer, self.max_length, self.classes, self.template, self.label_words)

    def record(self, row: LabelledText) -> LabelledText:
        return row


def _by_subset(predictions: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    """Return predictions by the name of the accuracy that they count for."""
    parts: dict[str, list[Prediction]] = {}
    for one in predictions:
        parts.setdefault(f"accuracy_{one.subset}" if one.subset else "accuracy", []).append(one)
    return parts


def answers(
    predictions: Sequence[Prediction], classes: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return predicted and true classes."""
    pairs = [(p.prediction, p.references[0]) for p in predictions]
    for number, pair in enumerate(pairs, 1):
        for name in (name for name in pair if name not in classes):
            raise DataError(
                f"prediction {number} has the class {name!r}; expected one of {', '.join(classes)}"
            )
    return [p for p, _ in pairs], [r for _, r in pairs]


class Columns(NamedTuple):
    """Columns of a file, by the names in its header."""

    texts: tuple[str, ...]
    label: str
    values: tuple[str, ...]  # the cell of the label for each class
    # The largest share of lines with another number of fields than the header, which are left out;
    # where it is not 0, texts may be empty. Loaders of GLUE treat QQP so.
    broken: float = 0.0


def read_tsv(path: Path, columns: Columns) -> list[LabelledText]:
    """Read labelled rows of one of GLUE's files, whose name says ``matched`` or ``mismatched``.

    Fields are separated by tabs, and quotes have no meaning.
    """
    names = (*columns.texts, columns.label)
    lines = text_lines(path, f"a GLUE file with columns {', '.join(names)}")
    header = lines[0].split("\t")
    if not set(names) <= set(header):
        raise DataError(
            f"{path}, line 1: got columns {', '.join(header)}; expected {', '.join(names)}"
        )
    found = [(n, line.split("\t")) for n, line in enumerate(lines[1:], 2) if line.strip()]
    broken = [number for number, fields in found if len(fields) != len(header)]
    if len(broken) > columns.broken * len(found):
        raise DataError(
            f"{path}, line {broken[0]}: this and {len(broken) - 1} other lines of {len(found)} "
            f"have not {len(header)} tab-separated fields"
        )
    places = [header.index(name) for name in names]
    rows = []
    for number, fields in found:
        if len(fields) != len(header):
            continue
        *texts, label = (fields[place].strip() for place in places)
        if label not in columns.values or not (all(texts) or columns.broken):
            raise DataError(
                f"{path}, line {number}: got {columns.label} {label!r} of {texts}; expected one of "
                f"{', '.join(columns.values)}, and no empty text"
            )
        rows.append(LabelledText(tuple(texts), columns.values.index(label), _subset(path.name)))
    return rows


def _subset(name: str) -> str:
    """Return the part of MNLI's validation rows that the name of a file or a split is of."""
    return next((part for part in ("mismatched", "matched") if part in name), "")


def _from_hub(
    row: Mapping[str, Any], where: str, texts: tuple[str, ...], classes: int
) -> LabelledText:
    """Return a row of the hub's copy, whose labels are the indices of the classes already."""
    *values, label = (row[name] for name in (*texts, "label"))
    if label not in range(classes) or not all(isinstance(text, str) for text in values):
        raise DataError(f"{where}: got the label {label} and the texts {values}")
    return LabelledText(tuple(text.strip() for text in values), label, _subset(where))


class Glue(Classification):
    """A task of GLUE: its test split has no labels."""

    columns: ClassVar[Columns]

    def __init_subclass__(cls) -> None:
        """Derive the files and the hub's copy, whose texts have the same names."""
        if "columns" not in vars(cls):  # a user's task that reads another one's files
            return
        cls.texts = len(cls.columns.texts)
        files = {"train": "train.tsv", "dev": "dev.tsv"}
        cls.dataset = vars(cls).get("dataset") or Dataset(
            (Form(files, partial(read_tsv, columns=cls.columns)),),
            Hub(
                "nyu-mll/glue",
                {"train": "train", "dev": "validation"},
                one_by_one(_from_hub, texts=cls.columns.texts, classes=len(cls.classes)),
                config=cls.name,
            ),
            partial(write_glue, cls.name),
        )

    def rows(self, split: str) -> Sequence[LabelledText]:
        if split == "test":
            raise SplitError(
                f"GLUE publishes no labels of {self.name}'s test split; expected train or dev, "
                "which is the published validation split: type decode.split=dev"
            )
        return super().rows(split)


class SST2(Glue):
    """Classify the sentiment of a sentence of a film review."""

    name = "sst2"
    record_is = "one row of the training file: a phrase of a film review with its sentiment"
    classes = ("negative", "positive")
    columns = Columns(("sentence",), "label", ("0", "1"))


class QNLI(Glue):
    """Decide whether a sentence holds the answer to a question."""

    name = "qnli"
    record_is = "one row of the training file: a question and a sentence with their label"
    classes = ("entailment", "not_entailment")
    columns = Columns(("question", "sentence"), "label", classes)


class QQP(Glue):
    """Decide whether two questions ask the same."""

    name = "qqp"
    record_is = "one row of the training file: two questions with their label"
    classes = ("not_duplicate", "duplicate")
    columns = Columns(("question1", "question2"), "is_duplicate", ("0", "1"), broken=1e-3)

    def score(self, predictions: Sequence[Prediction]) -> Mapping[str, float | None]:
        """Return ``accuracy``, and ``f1`` of the class ``duplicate``."""
        f1 = scorers.class_f1(*answers(predictions, self.classes), "duplicate")
        return {**super().score(predictions), "f1": f1}


class MNLI(Glue):
    """Decide whether a premise entails a hypothesis."""

    name = "mnli"
    record_is = "one row of the training file: a premise and a hypothesis with their label"
    classes = ("entailment", "neutral", "contradiction")
    columns = Columns(("sentence1", "sentence2"), "gold_label", classes)
    dataset = Dataset(
        (
            # Matched before mismatched, by name.
            Form(
                {"train": "train.tsv", "dev": "dev_m*atched.tsv"},
                partial(read_tsv, columns=columns),
            ),
            # A part of the data set, whose validation rows are neither.
            Form({"dev": "dev.tsv"}, partial(read_tsv, columns=columns)),
        ),
        Hub(
            "nyu-mll/glue",
            {"train": "train", "dev": "validation_matched+validation_mismatched"},
            one_by_one(_from_hub, texts=("premise", "hypothesis"), classes=3),
            config="mnli",
        ),
        partial(write_glue, "mnli"),
    )
