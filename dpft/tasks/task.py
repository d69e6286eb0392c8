"""The base of all tasks: records, questions to a model, and scores of its answers.

A record is the unit of privacy unless a task says otherwise: two datasets are neighbours if one has
one record more. An *objective* (`dpft.tasks.objectives`), which a task chooses, turns records into
losses and predictions: a task knows its data and its metric, and no tensors.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpft.config.errors import ConfigError, DataError, one_of
from dpft.config.flags import Flag, Stored, flag
from dpft.models.needs import Needs
from dpft.tasks.metrics.scorers import token_perplexity
from dpft.tasks.objectives.objective import Instance, Objective, Prediction, Question, text_room
from dpft.tasks.objectives.record_types import Record
from dpft.tasks.sources import Dataset, locate, read
from dpft.tasks.table_files import write_lines
from dpft.tasks.views import FloatArray, blocks

if TYPE_CHECKING:  # a task's settings are checked before torch is loaded, which takes seconds
    from transformers import PreTrainedTokenizerBase

    from dpft.models.load import LoadedModel
    from dpft.tasks.objectives.generation import Causal

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Task(ABC):
    """A data set, how much of it is used, and how answers are scored; see ``conf/task``.

    A subclass names its data set, turns rows into records, and chooses an objective and a metric.
    ``dpft.tasks.e2e`` is the one to read first.
    """

    source: str = "auto"
    data_dir: str | None = None
    revision: str | None = None
    limit_train: int | None = None
    limit_eval: int | None = None
    sample_seed: int = 0
    synthetic: str | None = None

    name: ClassVar[str]
    dataset: ClassVar[Dataset]
    record_is: ClassVar[str]
    unconditional: ClassVar[bool] = False  # whether records are texts without a source
    cuts_to_fit: ClassVar[bool] = False  # whether max_length is lowered to a model's positions
    lower: ClassVar[tuple[str, ...]] = ()  # scores of a subclass that are better the lower they are
    written_as: ClassVar[str] = "train.jsonl"  # the name of a training file of `write_records`

    def __post_init__(self) -> None:
        one_of("task.source", self.source, ("auto", "files", "hub", "sample"))
        for name in ("limit_train", "limit_eval", "max_length"):
            value, least = getattr(self, name, None), 2 if name == "max_length" else 1
            if value is not None and value < least:
                raise ConfigError(f"task.{name} is {value}; expected at least {least}")
        if self.revision is not None and self.location[0] != "hub":
            raise ConfigError(
                f"task.revision is {self.revision!r}, and the data is not read from the hub; leave "
                "task.revision out, or type task.source=hub"
            )

    @cached_property
    def location(self) -> tuple[str, Path | None]:
        """Return ``files`` and their folder, or ``hub`` or ``sample``; ``auto`` is resolved."""
        return locate(self.dataset, self.name, self.source, self.data_dir)

    @cached_property
    def commits(self) -> dict[str, str | None]:
        """Return the commit of the hub's copy of each split that was read; None of other data."""
        return {}

    def rows(self, split: str) -> Sequence[Any]:
        """Return rows of a split as published; of ``train`` from the file ``synthetic``, if any."""
        if split == "train" and self.synthetic is not None:
            rows = self.read_file(Path(self.synthetic))
            if not rows:
                raise DataError(f"{self.synthetic} has no rows; expected at least one record")
            return rows
        rows, self.commits[split] = read(
            self.dataset, self.name, self.location, split, self.sample_seed, self.revision
        )
        return rows

    def read_file(self, path: Path) -> Sequence[Any]:
        """Return rows of one file, in the first form whose files have its suffix."""
        forms = self.dataset.all_forms()
        fitting = (f for f in forms if any(n.endswith(path.suffix) for n in f.files.values()))
        return next(fitting, forms[0]).rows(path)

    def write_records(self, rows: Sequence[Any] | None, targets: Sequence[str], path: Path) -> None:
        """Write synthetic training records: the sources of ``rows``, each with a new target.

        By default as JSON lines of ``source`` and ``target``, or of ``text`` without a source, or
        of the columns of these settings. A task that overrides this writes a published form.
        """
        names = ("source", "target", "text")
        source, target, text = (getattr(self, f"{name}_column", name) for name in names)
        if rows is None or self.unconditional:
            write_lines(path, ({text: one} for one in targets))
            return
        pairs: Any = zip(map(self.record, rows), targets, strict=True)
        write_lines(path, ({source: record.source, target: one} for record, one in pairs))

    @property
    def writes_nothing(self) -> str | None:
        """Return why `dpft generate` cannot write with a model of this task; None if it can."""
        if self.needs.kind == "causal":
            return None
        return f"task {self.name} trains a model that writes no text; expected one such as e2e"

    def repeated(self, records: Sequence[Record]) -> float:
        """Return the share of records that are training records too, word for word.

        0 for published data sets, whose splits everybody uses.
        """
        return 0.0

    @property
    def published(self) -> bool:
        """Return whether the evaluation data are public: a known data set, or generated data.

        Only then a record carries a digest of the references, since guesses can be tested against a
        plain hash of private records. A task of another package is private unless it overrides
        this.
        """
        return type(self).__module__.startswith("dpft.tasks.")

    @abstractmethod
    def record(self, row: Any) -> Record:
        """Return a row as a record."""

    def records(self, split: str) -> Sequence[Record]:
        """Return all records of a split, or the first ``limit_train`` of ``train``."""
        rows = self.rows(split)[: self.limit_train if split == "train" else None]
        return [self.record(row) for row in rows]

    def records_of(self, path: Path) -> Sequence[Record]:
        """Return all records of one file of the task's form."""
        return [self.record(row) for row in self.read_file(path)]

    def advance_with(self, advance: Callable[[int], None]) -> None:
        """Have a function called with numbers of rows while large files are read."""
        return

    def owners(self) -> Sequence[str] | None:
        """Return the owner of each training record, where users are the units of privacy."""
        return None

    @property
    def records_per_user(self) -> int:
        """The most records of one user that take part in a step."""
        return 1

    @property
    def unit_noun(self) -> str:
        """The name of a unit of privacy: ``record`` or ``user``."""
        return "record"

    @property
    def unit_in_words(self) -> str:
        """A description of one unit of privacy."""
        return self.record_is

    @property
    @abstractmethod
    def needs(self) -> Needs:
        """The kind of model that the objective works with."""

    @abstractmethod
    def objective(self, loaded: LoadedModel) -> Objective:
        """Return the objective, which turns records into losses and predictions of this model."""

    def weights_of(self, examples: Sequence[Any]) -> FloatArray | None:
        """Return a weight of each record's clipped gradient, ``(n,)``, up to 1; None: all are 1."""
        return None

    def instances(self, split: str) -> Sequence[Instance]:
        """Return the questions of a split: one per record, unless a task groups references."""
        return [self.instance(record) for record in self.records(split)[: self.limit_eval]]

    def instance(self, record: Any) -> Instance:
        """Return a record as a question, with its own target as the reference."""
        return Instance(record, (record.target,))

    def questions(self, path: Path) -> Sequence[Question]:
        """Return the questions in a file, row by row; by default one of the task's own form."""
        records = map(self.record, self.read_file(path))
        return [Question({"source": getattr(r, "source", "")}, Instance(r, ())) for r in records]

    @abstractmethod
    def score(self, predictions: Sequence[Prediction]) -> Mapping[str, float | None]:
        """Return official scores of the predictions, which are in the order of `instances`."""

    def additional_scores(self, predictions: Sequence[Prediction]) -> Mapping[str, Any]:
        """Return ``baselines`` and ``confusion`` of a `ScoreRecord`."""
        return {}

    @abstractmethod
    def signature(self) -> str:
        """Return names and versions of the scorers."""

    def flags(self) -> list[Stored]:
        """Return flags of all scores, such as that records are generated."""
        found = (
            (self.location[0] == "sample", flag(Flag.SAMPLE_DATA)),
            (self.synthetic is not None, flag(Flag.SYNTHETIC_DATA)),
            (self.limit_train is not None, flag(Flag.LIMITED_TRAIN, limit=self.limit_train)),
            (self.limit_eval is not None, flag(Flag.LIMITED_EVAL, limit=self.limit_eval)),
        )
        return [one for is_true, one in found if is_true]

    def remarks(self) -> Sequence[str]:
        """Return warnings to the owner of the training data; they may quote private records."""
        return ()

    def details(self, split: str) -> Sequence[str]:
        """Return lines about a split that ``dpft data check`` prints after its size."""
        return ()

    def rendered(self, tokenizer: PreTrainedTokenizerBase) -> str | None:
        """Return the first training record as a model is given it; None: no view."""
        return None


def fingerprint(records: Iterable[Record], owners: Sequence[str] | None = None) -> str:
    """Return SHA-256 over the records, and their owners if any, in order."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(framed(record.parts()))
    if owners is not None:
        digest.update(b"owners")
        for names in blocks(owners, 1 << 12):
            digest.update(framed(map(str.encode, names)))
    return digest.hexdigest()


def framed(parts: Iterable[bytes]) -> bytes:
    """Return parts, each after its length."""
    return b"".join([x for part in parts for x in (len(part).to_bytes(8, "big"), part)])


@dataclass(frozen=True)
class Generation(Task):
    """A task of writing a text, with the settings that all of these tasks share."""

    max_length: int = 256
    loss: Literal["mean", "sum"] = "mean"

    @property
    def needs(self) -> Needs:
        return Needs("causal", source=True)

    def objective(self, loaded: LoadedModel) -> Causal:
        how = (loaded.text_tokenizer, self.max_length, self.loss)
        config = loaded.model.config
        if getattr(config, "is_encoder_decoder", False):
            from dpft.tasks.objectives.generation import EncoderDecoder

            start: int = config.decoder_start_token_id
            return EncoderDecoder(*how, **self.prompt_settings, start=start)
        from dpft.tasks.objectives.generation import Causal

        return Causal(*how, **self.prompt_settings, positions=text_room(loaded.model))

    @property
    def prompt_settings(self) -> Mapping[str, Any]:
        """Return settings of `Causal` on how a prompt is made and cut."""
        return {}


def perplexity(predictions: Sequence[Prediction]) -> float | None:
    """Return the `token_perplexity` of predictions."""
    return token_perplexity([p.nll for p in predictions], [p.tokens for p in predictions])
