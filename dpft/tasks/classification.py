"""Tasks whose answers are classes: by a new head, or by a word that fills a blank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from dpft.config.errors import DataError, one_of
from dpft.models.needs import Needs
from dpft.tasks import scores
from dpft.tasks.metrics import scorers
from dpft.tasks.objectives.objective import Instance, Prediction
from dpft.tasks.objectives.record_types import LabelledText
from dpft.tasks.objectives.template import check_words, parse_template
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
        from dpft.tasks.objectives.classifier import Classifier, Infilling, check_positions

        check_positions(loaded.model, self.max_length)
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
