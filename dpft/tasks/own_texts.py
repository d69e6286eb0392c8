"""Tasks on the user's own texts: a text from a text, a class of a text, and plain texts."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpft.config.errors import ConfigError, DataError, SettingError
from dpft.config.flags import Flag, Stored, flag
from dpft.config.schema import Positive
from dpft.models.needs import Needs
from dpft.tasks import scores
from dpft.tasks.classification import answers
from dpft.tasks.metrics import scorers
from dpft.tasks.objectives.objective import Instance, Prediction, texts, values
from dpft.tasks.objectives.record_types import LabelledText, TextRecord
from dpft.tasks.own import OwnData, own_dataset
from dpft.tasks.samples.texts import NOTE_CLASSES
from dpft.tasks.table_files import TableRow
from dpft.tasks.task import Generation, fingerprint, perplexity
from dpft.tasks.views import FloatArray

if TYPE_CHECKING:
    from dpft.models.load import LoadedModel
    from dpft.tasks.objectives.classifier import Classifier
    from dpft.tasks.objectives.generation import Causal, LanguageModel

FROM_DATA = "from_data"


@dataclass(frozen=True)
class TextToText(Generation, OwnData):
    """A text to write, given another; see ``conf/task/text2text.yaml``."""

    source_column: str = "source"
    target_column: str = "target"
    before: str = ""
    after: str = ""
    ends: bool = True
    cut: Literal["source", "target"] = "source"

    name = "text2text"
    dataset = own_dataset("text2text")
    record_is = "one row of the training data: a source text with its target text"

    def objective(self, loaded: LoadedModel) -> Causal:
        frame = loaded.text_tokenizer.encode(self.before + self.after, add_special_tokens=False)
        if len(frame) > self.max_length // 2:
            raise ConfigError(
                f"task.before and task.after have {len(frame)} tokens of the {self.max_length} of "
                "task.max_length; expected half of them at most, since they are never cut"
            )
        return super().objective(loaded)

    @property
    def prompt_settings(self) -> Mapping[str, Any]:
        framed = {name: getattr(self, name) for name in ("before", "after", "ends", "cut")}
        return {**framed, "perplexity": True}

    def record(self, row: TableRow) -> TextRecord:
        source = self._text(row, "source_column")
        return TextRecord((source,), self._text(row, "target_column"))

    def asked(self, row: TableRow) -> Instance:
        return Instance(TextRecord((self._text(row, "source_column"),), ""), ())

    def source_rows(self, sources: Sequence[str]) -> list[TableRow]:
        """Return rows with these sources; their targets are not used."""
        columns = self.source_column, self.target_column
        numbered = enumerate(sources, 1)
        return [TableRow(f"source {n}", dict.fromkeys(columns, text)) for n, text in numbered]

    def score(self, predictions: Sequence[Prediction]) -> Mapping[str, float | None]:
        both = texts(predictions)
        return {
            "BLEU": scorers.bleu(*both),
            "ROUGE_L": scorers.rouge(*both)["ROUGE_L"],
            "perplexity": perplexity(predictions),
        }

    def signature(self) -> str:
        cut = f"cut to {self.max_length} tokens"
        return f"{scorers.BLEU}; {scorers.ROUGE}; {scorers.PERPLEXITY}|{cut}"


@dataclass(frozen=True)
class TextClassification(OwnData):
    """A class for a text, or for two; see ``conf/task/classification.yaml``."""

    text_column: str = "text"
    pair_column: str | None = None
    label_column: str = "label"
    classes: tuple[str | int | bool, ...] | str | None = None
    class_weights: Mapping[str | int, Positive] | None = None

    name = "classification"
    dataset = own_dataset("classification")
    record_is = "one row of the training data: a text, or two, with a label"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_weights and self.unit == "user":
            raise SettingError("task.class_weights", self.class_weights, "task.unit=record")
        given: Any = self.classes
        if given is None or given == FROM_DATA:
            return  # weights of these are looked up with the classes
        names = [] if isinstance(given, str) else list(given)
        odd = any(isinstance(name, bool) or name is None for name in names)
        if odd or len({*map(str, names)}) < max(2, len(names)):
            raise ConfigError(
                f"task.classes is {given!r}; expected {FROM_DATA}, or two names at least, "
                "each once and true and false in quotes, as in "
                """'task.classes=["true","false"]'"""
            )
        _ = self.weights

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Return the classes in the order of the head's outputs.

        They are collected from the data only if the user says so: a single record can be the only
        one of its class, and the number of outputs is public.
        """
        if isinstance(self.classes, tuple):
            return tuple(str(name) for name in self.classes)
        if self.classes is None and self.source == "sample":
            return NOTE_CLASSES
        if self.classes is None:
            raise ConfigError(
                "task.classes is not set. Type their names, as in 'task.classes=[yes,no]'; or "
                f"task.classes={FROM_DATA} to collect them from the training data, which publishes "
                "that each of them occurs and is not covered by the guarantee"
            )
        names = sorted({*map(self.label, self._table("train"))})
        return tuple({_folded(name): name for name in reversed(names)}.values())[::-1]

    def label(self, row: TableRow) -> str:
        return row.name(self.label_column, "task.label_column")

    @cached_property
    def weights(self) -> FloatArray:
        """Return the weight of each class, ``(classes,)``, the largest being 1."""
        found = np.ones(len(self.class_names))
        for name, weight in (self.class_weights or {}).items():
            number = self._number(str(name))
            if number is None:
                classes = ", ".join(self.class_names)
                raise SettingError("task.class_weights", str(name), f"classes of {classes}")
            found[number] = weight
        found /= found.max()
        return found

    def weights_of(self, examples: Sequence[Any]) -> FloatArray | None:
        return self.weights[values(examples, "label")] if self.class_weights else None

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        """The number of each class by its name, and by its `_folded` name if no other has it."""
        folded = Counter(map(_folded, self.class_names))
        return {
            name: number
            for number, known in enumerate(self.class_names)
            for name in (known, *([_folded(known)] if folded[_folded(known)] == 1 else []))
        }

    def remarks(self) -> list[str]:
        counts = self._reading("train").labels
        spelled = ", ".join(
            f"{name!r} ({count:,} records) as {self.class_names[self._number(name) or 0]!r}"
            for name, count in sorted(counts.items())
            if name not in self.class_names
        )
        said = f"labels that differ in blanks, case or Unicode form are one class: {spelled}"
        found = {self._number(name) for name in counts}
        absent = [name for number, name in enumerate(self.class_names) if number not in found]
        unseen = f"classes without a training record: {', '.join(absent)}"
        return [
            *super().remarks(),
            *([said] if spelled else []),
            *([unseen] if absent else []),
        ]

    @property
    def needs(self) -> Needs:
        return Needs("classifier", self.class_names)

    @property
    def writes_nothing(self) -> str:
        return (
            "a classifier writes no text; expected a model that writes a text for a label: dpft "
            f"train task=text2text task.source_column={self.label_column} "
            f"task.target_column={self.text_column} with the same data. Both runs together spend "
            "both budgets"
        )

    def objective(self, loaded: LoadedModel) -> Classifier:
        from dpft.tasks.objectives.classifier import Classifier

        return Classifier(loaded.text_tokenizer, self.max_length, self.class_names)

    def record(self, row: TableRow) -> LabelledText:
        name = self.label(row)
        number = self._number(name)
        if number is None:
            raise DataError(
                f"{row.place}: label {name!r} is no class; expected one of "
                f"{', '.join(self.class_names)}: correct the label, or add it to task.classes"
            )
        return LabelledText(self.texts(row), number)

    def _number(self, name: str) -> int | None:
        """Return the number of the class with this name, or with this name but for its spelling."""
        return self._numbers.get(name, self._numbers.get(_folded(name)))

    def asked(self, row: TableRow) -> Instance:
        return Instance(LabelledText(self.texts(row), 0), ())

    def _content(self, row: TableRow, digest: str) -> str:
        # Not the number of its class, which one record of a new class would change.
        return fingerprint([TextRecord(self.texts(row), self.label(row))])

    def texts(self, row: TableRow) -> tuple[str, ...]:
        names = ("text_column",) if self.pair_column is None else ("text_column", "pair_column")
        return tuple(self._text(row, name) for name in names)

    def instance(self, record: Any) -> Instance:
        return Instance(record, (self.class_names[record.label],))

    def flags(self) -> list[Stored]:
        taken = [flag(Flag.CLASSES_FROM_DATA)] if self.classes == FROM_DATA else []
        return super().flags() + taken

    def details(self, split: str) -> list[str]:
        counts = Counter[int | None]()
        for name, count in self._reading(split).labels.items():
            counts[self._number(name)] += count
        named = {name: counts[number] for number, name in enumerate(self.class_names)}
        listed = ", ".join(f"{name} {count:,}" for name, count in named.items())
        few = [] if split == "train" else scores.rare(named)
        return [*super().details(split), f"labels: {listed}", *few]

    def score(self, predictions: Sequence[Prediction]) -> Mapping[str, float | None]:
        names = [p.prediction for p in predictions], [p.references[0] for p in predictions]
        if isinstance(self.classes, tuple):  # others would have to be looked up in training data
            names = answers(predictions, self.class_names)
        return {"accuracy": scorers.accuracy(*names), "macro_F1": scorers.macro_f1(*names)}

    def additional_scores(self, predictions: Sequence[Prediction]) -> Mapping[str, Any]:
        """Return what the most frequent class scores, and which classes were confused."""
        given = [p.prediction for p in predictions], [p.references[0] for p in predictions]
        confused = scores.confused(*given, sorted({*given[0], *given[1]}))
        return {"baselines": {"accuracy": scores.majority(given[1])}, **confused}

    def signature(self) -> str:
        return f"{scorers.CLASSES}|macro_F1: mean over classes that occur"


@dataclass(frozen=True)
class LanguageModeling(Generation, OwnData):
    """A text to predict token by token; see ``conf/task/language_modeling.yaml``."""

    text_column: str = "text"

    name = "language_modeling"
    unconditional = True
    dataset = own_dataset("language_modeling")
    record_is = "one row of the training data: a text, cut to task.max_length tokens"

    @property
    def needs(self) -> Needs:
        return Needs("causal")

    def objective(self, loaded: LoadedModel) -> LanguageModel:
        from dpft.tasks.objectives.generation import LanguageModel

        return LanguageModel(loaded.text_tokenizer, self.max_length, self.loss)

    def record(self, row: TableRow) -> TextRecord:
        return TextRecord((), self._text(row, "text_column"))

    def asked(self, row: TableRow) -> Instance:
        return self.instance(self.record(row))  # how likely the text itself is

    def score(self, predictions: Sequence[Prediction]) -> Mapping[str, float | None]:
        return {"perplexity": perplexity(predictions)}

    def signature(self) -> str:
        return f"{scorers.PERPLEXITY}|texts cut to {self.max_length} tokens"


def _folded(name: str) -> str:
    """Return the name of a class without what differs by accident: blanks, case, Unicode form."""
    return " ".join(unicodedata.normalize("NFC", name).split()).casefold()
