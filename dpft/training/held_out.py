"""Held-out records, and the loss of a model on them while it is trained on others."""

import filecmp
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from dpft.config.errors import ConfigError, DataError, SplitError
from dpft.config.schema import Evaluate, Run
from dpft.parallel.cohort import TrainingCohort
from dpft.privacy import microbatches
from dpft.privacy.untouched import random_state_kept
from dpft.tasks.base import Task
from dpft.tasks.metrics.scorers import token_perplexity
from dpft.tasks.metrics.shown import majority
from dpft.tasks.objectives.base import Objective
from dpft.tasks.objectives.causal import Causal
from dpft.tasks.objectives.classifier import Choice
from dpft.tasks.objectives.encoding import encode_all, lengths
from dpft.tasks.objectives.evaluation import answered, evaluating
from dpft.tasks.objectives.records import Record

Figures = dict[str, float]
_MOST = 0.5  # share of records that training records may repeat


def held_out_records(settings: Evaluate, task: Task) -> Sequence[Record]:
    """Return the records that a run is evaluated on; none without `Evaluate.every`."""
    if settings.every is None:
        return ()
    if settings.file is not None:
        settings.check_file()
        path = Path(settings.file)
        if is_trained_on(path, task):
            raise ConfigError(
                f"evaluate.file={path} is trained on, and no noise covers what is computed from it "
                "here; expected other records: a file of them, or evaluate.split"
            )
        records: Sequence[Record] = task.records_of(path)
        if not records:
            raise DataError(f"evaluate.file={path} has no rows; expected at least one record")
        check_repeated(task.repeated(records), f"evaluate.file={path}", "a file of them")
    else:
        typed = f"evaluate.split={settings.split}"
        _check_split(task, settings.split, typed, "evaluate.file=FILE")
        try:
            records = task.records(settings.split)[: task.limit_eval]
        except SplitError as error:
            raise SplitError(f"{typed}: {error}; or type evaluate.file=FILE") from error
        _check_split_repeated(task, settings.split, records)
    count = min(len(records), settings.max_records or len(records))
    return [records[place * len(records) // count] for place in range(count)]


def must_be_apart(run: Run, task: Task) -> bool:
    """Return whether scores must not be of the training records, since these have a guarantee.

    Synthetic records cost no budget, but the records that they stand for may have.
    """
    return run.clip.private or task.synthetic is not None


def check_scored(task: Task, split: str, records: Sequence[Record]) -> None:
    """Refuse scores and texts of a split whose records are trained on."""
    name = f"{split}_split"
    typed = f"task.{name}={getattr(task, name, None)}"
    _check_split(task, split, typed, f"task.{split}_share=0.1 to hold some back")
    _check_split_repeated(task, split, records)


def check_repeated(share: float, where: str, instead: str) -> None:
    """Refuse records most of which are trained on, in whatever form and order they are saved.

    A few may be, since people say the same things; `dpft data check` counts them.
    """
    if share > _MOST:
        raise ConfigError(
            f"most records of {where} are trained on, word for word, and no noise covers what is "
            f"computed of them; expected other records: {instead}"
        )


def _check_split_repeated(task: Task, split: str, records: Sequence[Record]) -> None:
    """`check_repeated` of a split, unless it is a share of the data that a digest holds out."""
    if not getattr(task, f"{split}_share", 0):
        instead = f"give a file of them, or type task.{split}_share=0.1 to hold some back"
        check_repeated(task.repeated(records), f"the {split} split", instead)


def _check_split(task: Task, split: str, typed: str, instead: str) -> None:
    """Refuse a split whose file, or whose split of the hub, is trained on."""
    # A published data set may have several splits in one file.
    for file in _files_of(task, split) if hasattr(task, "train_file") else ():
        if is_trained_on(file, task):
            given = getattr(task, f"{split}_file") is not None
            raise ConfigError(
                f"{f'task.{split}_file=' if given else ''}{file} is trained on, and no noise "
                "covers scores and texts that are made of it; expected other records, in a file "
                "that is no link to the training file and no copy of it: give one, or type "
                f"{instead}"
            )
    if task.location[0] != "hub" or task.synthetic is not None:
        return
    # Slices of one split may overlap.
    train, scored = (
        {part.partition("[")[0].strip() for part in (name or "").split("+")}
        for name in (getattr(task, f"{one}_split", None) for one in ("train", split))
    )
    if same := (train & scored) - {""}:
        raise ConfigError(
            f"{typed} is of the hub's split {same.pop()}, which is trained on, and no noise covers "
            f"what is made of it; expected other records: type {instead}"
        )


def is_trained_on(file: Path, task: Task) -> bool:
    """Return whether a file is, or is a copy of, one of the training records' files.

    With synthetic records, also one of the real records that these stand for.
    """
    trained = _files_of(task, task.published_train)
    if task.synthetic is not None:
        trained.append(Path(task.synthetic))
    return file.is_file() and any(
        one.is_file() and (file.samefile(one) or filecmp.cmp(file, one, shallow=False))
        for one in trained
    )


def _files_of(task: Task, split: str) -> list[Path]:
    """Return the files of a split; none where the data are not in files."""
    if (own := getattr(task, f"{split}_file", None)) is not None:
        return [Path(own)]
    kind, folder = task.location
    if kind != "files" or folder is None or not folder.is_dir():
        return []
    return [file for form in task.dataset.all_forms() for file in form.found(folder, split)]


@dataclass(frozen=True)
class HeldOut:
    """Records that a model is evaluated on while it trains.

    Attributes:
        public: whether figures of these records may be published.
        token_budget: most padded tokens in memory at once, as in training.
        scored: whether a file's records are also among those that the run is scored on.
    """

    settings: Evaluate
    objective: Objective
    records: Sequence[Record]
    public: bool
    token_budget: int
    scored: bool = False

    def __post_init__(self) -> None:
        if self.settings.best == "accuracy" and not isinstance(self.objective, Choice):
            raise ConfigError(
                "evaluate.best=accuracy for a task whose answers are no classes; type "
                "evaluate.best=loss"
            )

    @cached_property
    def examples(self) -> list[Any]:
        return encode_all(self.objective, self.records)

    @property
    def baseline(self) -> float | None:
        """The accuracy of always answering the most frequent class; None without classes."""
        if not isinstance(self.objective, Choice):
            return None
        return majority([record.label for record in self.records])  # type: ignore[attr-defined]

    @torch.no_grad()
    def figures(self, model: Any, cohort: TrainingCohort) -> Figures:
        """Return the model's loss on the records; a collective, with the same result on all ranks.

        Returns:
            ``loss``, the mean over records of the loss that is trained on; ``accuracy`` of classes;
            ``perplexity`` per token of texts, where it is finite.
        """
        batches = microbatches(range(len(self.examples)), lengths(self.examples), self.token_budget)
        own = len(batches)
        if cohort.sharded:  # ranks run each layer together: as many batches for each
            batches += [batches[-1]] * (-own % cohort.size)
        losses, right = [math.nan] * len(self.examples), 0
        with evaluating(model), random_state_kept(*model.parameters()):
            every = answered(batches, lambda batch: [self._of(model, batch)], cohort)
            for number, (batch, [(found, hits)]) in enumerate(every):
                if number < own:
                    right += hits
                    for index, loss in zip(batch, found, strict=True):
                        losses[index] = loss
        if cohort.sharded:
            from dpft.parallel.sharded import reshard

            reshard(model)
        figures = {"loss": math.fsum(losses) / len(losses)}
        if isinstance(self.objective, Choice):
            figures["accuracy"] = right / len(losses)
        if isinstance(self.objective, Causal) and type(self.objective).losses is Causal.losses:
            tokens = [example.counted for example in self.examples]
            mean = self.objective.loss == "mean"
            nlls = [n * loss if mean else loss for n, loss in zip(tokens, losses, strict=True)]
            if (perplexity := token_perplexity(nlls, tokens)) is not None:
                figures["perplexity"] = perplexity
        return figures

    def _of(self, model: Any, batch: Sequence[int]) -> tuple[list[float], int]:
        """Return the losses of some records, and how many of them are classified correctly."""
        device = next(model.parameters()).device
        made = self.objective.collate([self.examples[index] for index in batch]).to(device)
        if not isinstance(self.objective, Choice):
            return self.objective.losses(model, made).double().tolist(), 0
        logits, labels = self.objective.scores(model, made).double(), made.tensors["labels"]
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        if type(self.objective).losses is not Choice.losses:  # overridden by a subclass
            losses = self.objective.losses(model, made).double()
        return losses.tolist(), int((logits.argmax(1) == labels).sum())
