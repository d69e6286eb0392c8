"""The tasks on the user's own data: texts from texts, classes of texts, and plain texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft.config.errors import ConfigError, DataError, one_of
from dpft.models.needs import Needs
from dpft.tasks.base import fingerprint
from dpft.tasks.classification import answers
from dpft.tasks.generation import Generation, check_room, perplexity
from dpft.tasks.metrics import baseline, classification
from dpft.tasks.metrics.perplexity import SIGNATURE as PERPLEXITY
from dpft.tasks.objectives.base import Instance, Prediction, texts
from dpft.tasks.objectives.records import LabelledText, TextRecord
from dpft.tasks.own import OwnData, own_dataset
from dpft.tasks.reading import Reading
from dpft.tasks.samples import own as own_sample
from dpft.tasks.tables import TableRow, write_lines

if TYPE_CHECKING:
    from dpft.models.load import LoadedModel
    from dpft.tasks.objectives.causal import Causal
    from dpft.tasks.objectives.classifier import Classifier
    from dpft.tasks.objectives.language_model import LanguageModel

FROM_DATA = "from_data"


@dataclass(frozen=True)
class TextToText(Generation, OwnData):
    """A text to write, given another; see ``conf/task/text2text.yaml``."""

    source_column: str = "source"
    target_column: str = "target"
    before: str = ""
    after: str = ""
    ends: bool = True
    cut: str = "source"

    name = "text2text"
    dataset = own_dataset("text2text")
    record_is = "one row of the training data: a source text with its target text"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("task.cut", self.cut, ("source", "target"))

    def objective(self, loaded: LoadedModel) -> Causal:
        frame = loaded.text_tokenizer.encode(self.before + self.after, add_special_tokens=False)
        if len(frame) > self.max_length // 2:
            raise ConfigError(
                f"task.before and task.after have {len(frame)} tokens of the {self.max_length} of "
                "task.max_length; expected half of them at most, since they are never cut"
            )
        return super().objective(loaded)

    def doubts(self, loaded: LoadedModel) -> Sequence[str]:
        from dpft.tasks.objectives.tokens import joins

        found = list[str]()
        if self.before.endswith(" ") and joins(loaded.text_tokenizer):
            found.append(
                f"task.before={self.before!r} ends in a space, which is a token by itself here and "
                "a part of the next word in all else that the model has read, so that a source "
                "begins as if within a word; expected a line break at the end: type "
                f"""$'task.before="{self.before.rstrip()}\\n"'"""
            )
        if self.ends and getattr(loaded.text_tokenizer, "chat_template", None) is not None:
            found.append(
                "the model has a chat template, and task.ends=true puts its end token behind the "
                "source, where it has learned to end an answer; type task.ends=false with a "
                "delimiter, such as 'task.after=\" Answer:\"', or task=chat for conversations"
            )
        return found

    @property
    def prompt_settings(self) -> Mapping[str, Any]:
        framed = {name: getattr(self, name) for name in ("before", "after", "ends", "cut")}
        return {**framed, "perplexity": True}

    def record(self, row: TableRow) -> TextRecord:
        source, target = self.texts(row)
        return TextRecord((source,), target)

    def asked(self, row: TableRow) -> Instance:
        source = row.text(self.source_column, "task.source_column")
        return Instance(TextRecord((source,), ""), ())

    def texts(self, row: TableRow) -> tuple[str, str]:
        return (
            row.text(self.source_column, "task.source_column"),
            row.text(self.target_column, "task.target_column"),
        )

    def source_rows(self, sources: Sequence[str]) -> list[TableRow]:
        """Rows with these sources; their targets are not used."""
        return [
            TableRow(f"source {n}", {self.source_column: source, self.target_column: source})
            for n, source in enumerate(sources, 1)
        ]

    def sample_rows(self, seed: int) -> list[TableRow]:
        made_up = TextToText(source="sample", sample_seed=seed)
        columns = self.source_column, self.target_column
        return [
            TableRow(row.place, dict(zip(columns, made_up.texts(row), strict=True)))
            for row in made_up.rows("train")
        ]

    def write_records(self, rows: Sequence[Any] | None, targets: Sequence[str], path: Path) -> None:
        """JSON lines with the columns of the settings."""
        assert rows is not None
        write_lines(
            path,
            (
                {self.source_column: self.texts(row)[0], self.target_column: target}
                for row, target in zip(rows, targets, strict=True)
            ),
        )

    def score(self, predictions: Sequence[Prediction]) -> Mapping[str, float | None]:
        from dpft.tasks.metrics import bleu, rouge

        both = texts(predictions)
        return {
            "BLEU": bleu.score(*both),
            "ROUGE_L": rouge.score(*both)["ROUGE_L"],
            "perplexity": perplexity(predictions),
        }

    def signature(self) -> str:
        from dpft.tasks.metrics import bleu, rouge

        return f"{bleu.SIGNATURE}; {rouge.SIGNATURE}; {PERPLEXITY}|cut to {self.max_length} tokens"


@dataclass(frozen=True)
class TextClassification(OwnData):
    """A class for a text, or for two; see ``conf/task/classification.yaml``."""

    text_column: str = "text"
    pair_column: str | None = None
    label_column: str = "label"
    classes: tuple[str, ...] | str | None = None

    name = "classification"
    dataset = own_dataset("classification")
    record_is = "one row of the training data: a text, or two, with a label"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.classes, str) and self.classes != FROM_DATA:
            raise ConfigError(
                f"task.classes is {self.classes!r}; expected a list such as "
                f"'task.classes=[yes,no]', or {FROM_DATA}"
            )
        if isinstance(self.classes, tuple):
            given: tuple[object, ...] = self.classes
            odd = [name for name in given if isinstance(name, bool) or name is None]
            if odd:
                raise ConfigError(
                    f"task.classes is {list(given)}; expected names, not {odd[0]!r}: put "
                    """them in quotes, as in 'task.classes=["true","false"]'"""
                )
            names = [str(name) for name in self.classes]
            if len(set(names)) < max(2, len(names)):
                raise ConfigError(
                    f"task.classes is {', '.join(names)}; expected two names at least, each once"
                )

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """In the order of the head's outputs.

        They are not collected from the data unless the user says so: that a class exists may be
        known from a single record, and the number of outputs tells it to everybody.
        """
        if isinstance(self.classes, tuple):
            return tuple(str(name) for name in self.classes)
        if self.classes is None and self.source == "sample":
            return own_sample.CLASSES
        if self.classes is None:
            raise ConfigError(
                "task.classes is not set. Type their names, as in 'task.classes=[yes,no]'; or "
                f"task.classes={FROM_DATA} to collect them from the training data, which tells "
                "everybody that each of them occurs and is not covered by the guarantee"
            )
        rows = self._file("train").scan()
        names = {row.name(self.label_column, "task.label_column") for _, _, row in rows}
        if len(names) < 2:
            raise DataError(
                f"all labels of the training data are {', '.join(names)}; expected two classes at "
                "least"
            )
        return tuple(sorted(names))

    @property
    def needs(self) -> Needs:
        return Needs("classifier", self.class_names)

    @property
    def writes_nothing(self) -> str:
        return (
            "a classifier writes no text; expected a model that writes a text for a label, on the "
            f"same data: dpft train task=text2text task.source_column={self.label_column} "
            f"task.target_column={self.text_column} model=gpt2, then dpft generate RUN n=1000 "
            f"'sources=[{','.join(self.class_names)}]'. Both runs together spend both budgets"
        )

    def objective(self, loaded: LoadedModel) -> Classifier:
        from dpft.tasks.objectives.classifier import Classifier, check_positions

        check_positions(loaded.model, self.max_length)
        return Classifier(loaded.text_tokenizer, self.max_length, self.class_names)

    def record(self, row: TableRow) -> LabelledText:
        name = row.name(self.label_column, "task.label_column")
        if name not in self.class_names:
            raise DataError(
                f"{row.place}: label {name!r} is no class; expected one of "
                f"{', '.join(self.class_names)}: correct the label, or add it to task.classes"
            )
        return LabelledText(self.texts(row), self.class_names.index(name))

    def asked(self, row: TableRow) -> Instance:
        return Instance(LabelledText(self.texts(row), 0), ())

    def _content(self, row: TableRow, digest: str) -> str:
        # Not the number of its class, which one record of a new class would change.
        name = row.name(self.label_column, "task.label_column")
        return fingerprint([TextRecord(self.texts(row), name)])

    def texts(self, row: TableRow) -> tuple[str, ...]:
        first = row.text(self.text_column, "task.text_column")
        if self.pair_column is None:
            return (first,)
        return first, row.text(self.pair_column, "task.pair_column")

    def instance(self, record: Any) -> Instance:
        return Instance(record, (self.class_names[record.label],))

    def _reading(self, split: str) -> Reading:
        found = super()._reading(split)
        if split == "train" and (only := self._only_label(found.labels)) is not None:
            raise DataError(
                f"every label of the training data is {only}, so there is nothing to tell apart; "
                f"expected records of two classes at least, of {', '.join(self.class_names)}"
            )
        return found

    def _only_label(self, counts: Counter[int]) -> str | None:
        """The class that all records are of; None if they are of several."""
        present = [name for i, name in enumerate(self.class_names) if counts[i]]
        return present[0] if len(present) == 1 else None

    def labels(self) -> list[str]:
        taken = ["class names taken from the training data, outside the guarantee"]
        return super().labels() + (taken if self.classes == FROM_DATA else [])

    def details(self, split: str) -> list[str]:
        counts = self._reading(split).labels
        listed = ", ".join(f"{name} {counts[i]:,}" for i, name in enumerate(self.class_names))
        told = [f"labels: {listed}"]
        if (only := self._only_label(counts)) is not None:
            told.append(f"every label is {only}: the commonest class scores 1 here")
        return [*super().details(split), *told]

    def score(self, predictions: Sequence[Prediction]) -> Mapping[str, float | None]:
        names = [p.prediction for p in predictions], [p.references[0] for p in predictions]
        if isinstance(self.classes, tuple):  # others would have to be looked up in training data
            names = answers(predictions, self.class_names)
        return {"accuracy": classification.accuracy(*names)}

    def beside(self, predictions: Sequence[Prediction]) -> Mapping[str, Any]:
        """What the most frequent class scores everywhere, and which classes were confused."""
        given = [p.prediction for p in predictions], [p.references[0] for p in predictions]
        names = sorted({*given[0], *given[1]})
        return {
            "baselines": {"accuracy": baseline.majority(given[1])},
            **baseline.confused(*given, names),
        }

    def signature(self) -> str:
        return classification.SIGNATURE


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
        from dpft.tasks.objectives.language_model import LanguageModel

        check_room(loaded.model, self.max_length)
        return LanguageModel(loaded.text_tokenizer, self.max_length, self.loss)

    def record(self, row: TableRow) -> TextRecord:
        return TextRecord((), *self.texts(row))

    def asked(self, row: TableRow) -> Instance:
        return self.instance(self.record(row))  # how likely the text itself is

    def texts(self, row: TableRow) -> tuple[str]:
        return (row.text(self.text_column, "task.text_column"),)

    def write_records(self, rows: Sequence[Any] | None, targets: Sequence[str], path: Path) -> None:
        """JSON lines with the column of the settings."""
        write_lines(path, ({self.text_column: target} for target in targets))

    def score(self, predictions: Sequence[Prediction]) -> Mapping[str, float | None]:
        return {"perplexity": perplexity(predictions)}

    def signature(self) -> str:
        return f"{PERPLEXITY}|texts cut to {self.max_length} tokens"
