"""What a task is: which records there are, what is asked of a model, and how answers are scored.

A record is the unit of privacy unless a task says otherwise: two datasets are neighbours if one has
one record more. How records become losses and predictions is the matter of an *objective*
(`dpft.tasks.objectives`), which a task chooses: a task knows its data and its metric, and no
tensors.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dpft.config import imported
from dpft.config.errors import ConfigError, DataError
from dpft.models.needs import Needs
from dpft.tasks.objectives.base import Instance, Objective, Prediction, Question
from dpft.tasks.objectives.records import Record, TextRecord
from dpft.tasks.sources import Dataset, locate, read
from dpft.tasks.tables import write_lines
from dpft.tasks.views import blocks

if TYPE_CHECKING:  # a task's settings are checked before torch is loaded, which takes seconds
    from transformers import PreTrainedTokenizerBase

    from dpft.models.load import LoadedModel
    from dpft.tasks.keeping import Keeping

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Task(ABC):
    """Where the data is, and how much of it is used; see ``conf/task`` for what settings mean.

    A subclass says in its class attributes what the data set is, turns rows into records, and
    names its objective and its metric. ``dpft.tasks.e2e`` is the one to read first.
    """

    source: str = "auto"
    data_dir: str | None = None
    limit_train: int | None = None
    limit_eval: int | None = None
    sample_seed: int = 0
    synthetic: str | None = None
    metrics: tuple[str, ...] = ()

    name: ClassVar[str]
    dataset: ClassVar[Dataset]
    record_is: ClassVar[str]
    """What one record is, in words for the model card."""
    unconditional: ClassVar[bool] = False
    """Whether records are texts without a source."""
    written_as: ClassVar[str] = "train.jsonl"
    """What `write_records` would call a training file."""

    def __post_init__(self) -> None:
        if self.source not in ("auto", "files", "hub", "sample"):
            raise ConfigError(
                f"task.source is {self.source!r}; expected auto, files, hub or sample"
            )
        for name in ("limit_train", "limit_eval", "max_length"):
            value, least = getattr(self, name, None), 2 if name == "max_length" else 1
            if value is not None and value < least:
                raise ConfigError(f"task.{name} is {value}; expected at least {least}")
        for name in self.metrics:  # scores are computed in the end: by then it would be too late
            imported.load("task.metrics", name)

    # Data.

    @cached_property
    def location(self) -> tuple[str, Path | None]:
        """``files`` and their folder, or ``hub`` or ``sample``, after ``auto`` was resolved."""
        return locate(self.dataset, self.name, self.source, self.data_dir)

    @property
    def train_slice(self) -> str | None:
        """The part of the hub's split that is trained on, taken by its place; None: all of it."""
        return None

    @property
    def published_train(self) -> str:
        """The published split that the training records are of."""
        return "train"

    def rows(self, split: str) -> Sequence[Any]:
        """Rows of a split as published; those of ``train`` from the file ``synthetic``, if given.

        Raises:
            DataError: if the data is missing, empty or malformed.
        """
        if split == "train" and self.synthetic is not None:
            rows = self.read_file(Path(self.synthetic))
            if not rows:
                raise DataError(f"{self.synthetic} has no rows; expected at least one record")
            return rows
        return read(self.dataset, self.name, self.location, split, self.sample_seed)

    def sample_rows(self, seed: int) -> Sequence[Any]:
        """Training rows of the generated sample of a seed, as if they were of this task's data."""
        return type(self)(source="sample", sample_seed=seed).rows("train")

    def read_file(self, path: Path) -> Sequence[Any]:
        """Rows of one file, in the first form whose files end as it does.

        Raises:
            DataError: if it is missing or malformed.
        """
        forms = self.dataset.all_forms()
        fitting = [
            form
            for form in forms
            if path.suffix in {Path(pattern).suffix for pattern in form.files.values()}
        ]
        return [*fitting, forms[0]][0].rows(path)

    def write_records(self, rows: Sequence[Any] | None, targets: Sequence[str], path: Path) -> None:
        """Write synthetic training records: the sources of ``rows``, each with another target.

        Here as JSON lines of ``source`` and ``target``, or of ``text`` where rows are None: texts
        without a source. A task that overrides this writes its first published form, the inverse
        of reading.

        Raises:
            ConfigError: if the task's records are not texts.
        """
        if rows is None:
            items = [{"text": target} for target in targets]
        else:
            records = [self.record(row) for row in rows]
            if not all(isinstance(record, TextRecord) for record in records):
                raise ConfigError(f"records of task {self.name} are no texts; none can be written")
            items = [
                {"source": record.source, "target": target}  # type: ignore[attr-defined]
                for record, target in zip(records, targets, strict=True)
            ]
        write_lines(path, items)

    @property
    def writes_whole(self) -> bool:
        """Whether `dpft generate` has the model write whole records, without a source."""
        return self.unconditional

    @property
    def writes_nothing(self) -> str | None:
        """Why `dpft generate` has nothing to write with a model of this task, and what to type."""
        if self.needs.kind == "causal":
            return None
        return f"task {self.name} trains a model that writes no text; expected one such as e2e"

    def repeated(self, records: Sequence[Record]) -> float:
        """Which share of other records training records repeat word for word.

        Of published data sets 0: their splits are what everybody compares with. And where records
        have users, of whom many may say the same.
        """
        return 0.0

    @property
    def published(self) -> bool:
        """Whether anyone may have what is asked of a model: a known data set, or generated data.

        Only then a record carries a digest of the references: a plain hash of private records can
        be tested against guesses. A task of another package may read anything, so it is not taken
        for published unless it says so here.
        """
        return type(self).__module__.startswith("dpft.tasks.")

    @abstractmethod
    def record(self, row: Any) -> Record:
        """A row as a record."""

    def records(self, split: str) -> Sequence[Record]:
        """All records of ``split``, or the first ``limit_train`` of ``train``."""
        rows = self.rows(split)
        return [
            self.record(row) for row in (rows[: self.limit_train] if split == "train" else rows)
        ]

    def records_of(self, path: Path) -> Sequence[Record]:
        """All records of one file of the task's form: those of `records`, were it a split."""
        return [self.record(row) for row in self.read_file(path)]

    def keep_in(self, keeping: Keeping | None, advance: Callable[[int], None]) -> None:
        """Set where the reading of large files is kept; ``advance`` is called with rows read.

        Without effect here: a task that reads large files overrides it.
        """
        return

    def owners(self) -> Sequence[str] | None:
        """Whose each record of `records` of ``train`` is, where users are the units of privacy."""
        return None

    @property
    def known_fingerprint(self) -> str | None:
        """`fingerprint` of `records` of ``train`` and `owners`, if reading gives it."""
        return None

    @property
    def records_per_user(self) -> int:
        """How many records of one user take part in a step, at most."""
        return 1

    @property
    def unit_noun(self) -> str:
        """What a unit of privacy is called: ``record``, or ``user`` where `owners` says so."""
        return "record"

    @property
    def unit_in_words(self) -> str:
        """What one unit of privacy is, in words."""
        return self.record_is

    # Model.

    @property
    @abstractmethod
    def needs(self) -> Needs:
        """The kind of model that the objective works with."""

    @abstractmethod
    def objective(self, loaded: LoadedModel) -> Objective:
        """How records become losses and predictions with this model."""

    # Scores.

    def instances(self, split: str) -> Sequence[Instance]:
        """What is asked of the model: one instance a record, unless a task groups references."""
        return [self.instance(record) for record in self.records(split)[: self.limit_eval]]

    def instance(self, record: Any) -> Instance:
        """A record as a question, with its own target as the reference."""
        return Instance(record, (record.target,))

    def questions(self, path: Path) -> Sequence[Question]:
        """What a file asks of a trained model, row by row; here one of the task's own form.

        Raises:
            DataError: if it is missing or malformed.
        """
        records = [self.record(row) for row in self.read_file(path)]
        return [
            Question({"source": getattr(record, "source", "")}, Instance(record, ()))
            for record in records
        ]

    def joined(self, predictions: Sequence[Prediction]) -> list[Prediction]:
        """Return the instances that the lines of a foreign file are: here one for each line.

        Raises:
            DataError: if lines may be one instance, and nothing says so.
        """
        return [*predictions]

    @abstractmethod
    def score(self, predictions: Sequence[Prediction]) -> Mapping[str, float | None]:
        """Official scores of the predictions, in the order of `instances`."""

    def beside(self, predictions: Sequence[Prediction]) -> Mapping[str, Any]:
        """What scores are read beside: ``baselines`` and ``confusion`` of a `ScoreRecord`."""
        return {}

    @abstractmethod
    def signature(self) -> str:
        """Names and versions of what computes the scores."""

    def labels(self) -> list[str]:
        """Words that every shown number must carry, such as "generated sample data"."""
        labels = []
        if self.location[0] == "sample":
            labels.append("generated sample data")
        if self.synthetic is not None:
            labels.append("synthetic training records")
        if self.limit_train is not None:
            labels.append(f"first {self.limit_train} training records only")
        if self.train_slice is not None:
            labels.append(f"training records of {self.train_slice} only")
        if self.limit_eval is not None:
            labels.append(f"first {self.limit_eval} evaluation instances only")
        return labels

    def remarks(self) -> Sequence[str]:
        """What of the training data its owner had better look at, before it is trained on.

        It may name single private records.
        """
        return ()

    def doubts(self, loaded: LoadedModel) -> Sequence[str]:
        """What of the settings goes badly with this model; it tells nothing of the data."""
        return ()

    def details(self, split: str) -> Sequence[str]:
        """What ``dpft data check`` says of a split beside the number of its records."""
        return ()

    def rendered(self, tokenizer: PreTrainedTokenizerBase) -> str | None:
        """The first training record as a model is given it; None where that is not shown."""
        return None


def fingerprint(records: Iterable[Record], owners: Sequence[str] | None = None) -> str:
    """SHA-256 over the records in order: two runs saw the same data if and only if it is equal.

    Where users are the units, other owners are other units.
    """
    digest = hashlib.sha256()
    for record in records:
        digest.update(framed(record.parts()))
    if owners is not None:
        digest_owners(digest, owners)
    return digest.hexdigest()


def digest_owners(digest: Any, owners: Sequence[str]) -> None:
    """Add whose records they are to a digest of `fingerprint`."""
    digest.update(b"owners")
    for names in blocks(owners, 1 << 12):
        digest.update(framed(map(str.encode, names)))


def framed(parts: Iterable[bytes]) -> bytes:
    """Parts, each behind its length."""
    return b"".join([x for part in parts for x in (len(part).to_bytes(8, "big"), part)])
