"""Held-out records, and what a model loses on them while it is trained on others."""

from __future__ import annotations

import filecmp
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from dpft.config.errors import ConfigError, DataError, SplitError
from dpft.config.evaluate import Evaluate
from dpft.config.schema import Run
from dpft.parallel.cohort import TrainingCohort
from dpft.privacy import microbatches
from dpft.privacy.untouched import random_state_kept
from dpft.tasks.base import Task
from dpft.tasks.metrics.baseline import majority
from dpft.tasks.metrics.perplexity import token_perplexity
from dpft.tasks.objectives.base import Objective
from dpft.tasks.objectives.causal import Causal
from dpft.tasks.objectives.choice import Choice
from dpft.tasks.objectives.dealing import answered
from dpft.tasks.objectives.encoding import encode_all
from dpft.tasks.objectives.evaluation import evaluating
from dpft.tasks.objectives.packed import lengths
from dpft.tasks.objectives.records import Record

Figures = dict[str, float]
_MOST = 0.5  # of the records that are asked of


def held_out_records(settings: Evaluate, task: Task) -> Sequence[Record]:
    """The records that a run is to be evaluated on; none without `Evaluate.every`.

    Raises:
        ConfigError: they are those that are trained on.
        DataError: they are missing or malformed.
    """
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
    """Whether scores must not be of the training records: where these have a guarantee.

    Synthetic records cost no budget, but what they stand for may have cost one.
    """
    return run.clip.private or task.synthetic is not None


def check_scored(task: Task, split: str, records: Sequence[Record]) -> None:
    """Refuse scores and texts of a split that would be of the training records.

    Args:
        task: what is trained on.
        split: that is asked of.
        records: of it.

    Raises:
        ConfigError: if the file of the split, or the split of the hub, is what is trained on, or
            most records are.
    """
    name = f"{split}_split"
    typed = f"task.{name}={getattr(task, name, None)}"
    _check_split(task, split, typed, f"task.{split}_share=0.1 to hold some back")
    _check_split_repeated(task, split, records)


def check_repeated(share: float, where: str, instead: str) -> None:
    """Refuse records most of which are trained on, saved in whatever form and order.

    A few may be: people say the same things. How many there are, `dpft data check` counts.

    Args:
        share: of the records to be asked of, how many training records repeat.
        where: they are, in words.
        instead: to be typed.

    Raises:
        ConfigError: if so.
    """
    if share > _MOST:
        raise ConfigError(
            f"most records of {where} are trained on, word for word, and no noise covers what is "
            f"computed of them; expected other records: {instead}"
        )


def _check_split_repeated(task: Task, split: str, records: Sequence[Record]) -> None:
    """`check_repeated` of a split that is no share of the training data, held out by digest."""
    if not getattr(task, f"{split}_share", 0):
        instead = f"give a file of them, or type task.{split}_share=0.1 to hold some back"
        check_repeated(task.repeated(records), f"the {split} split", instead)


def _check_split(task: Task, split: str, typed: str, instead: str) -> None:
    """Refuse records of a split that is trained on, if they are files' or the hub's."""
    # Of a published data set, both may be parts of one file.
    for file in _files_of(task, split) if hasattr(task, "train_file") else ():
        if is_trained_on(file, task):
            given = getattr(task, f"{split}_file") is not None
            raise ConfigError(
                f"{f'task.{split}_file=' if given else ''}{file} is trained on, and no noise "
                "covers scores and texts that are made of it; expected other records, in a file "
                "that is no link to the training file and no copy of it: give one, or type "
                f"{instead}"
            )
    _check_hub_split(task, split, typed, instead)


def _check_hub_split(task: Task, split: str, typed: str, instead: str) -> None:
    """Refuse records of the hub's split that is trained on, slices of it too: they may overlap."""
    if task.location[0] != "hub" or task.synthetic is not None:
        return
    named = [getattr(task, f"{one}_split", None) for one in ("train", split)]
    train, asked = (
        {part.partition("[")[0].strip() for part in (name or "").split("+")} for name in named
    )
    if same := (train & asked) - {""}:
        raise ConfigError(
            f"{typed} is of the hub's split {same.pop()}, which is trained on, and no noise covers "
            f"what is made of it; expected other records: type {instead}"
        )


def is_trained_on(file: Path, task: Task) -> bool:
    """Whether a file, by whatever name or as a copy, is one of the training records'.

    Beside synthetic records, also one of the real records that these stand for.
    """
    trained = _files_of(task, task.published_train)
    if task.synthetic is not None:
        trained.append(Path(task.synthetic))
    return file.is_file() and any(
        one.is_file() and (file.samefile(one) or filecmp.cmp(file, one, shallow=False))
        for one in trained
    )


def _files_of(task: Task, split: str) -> list[Path]:
    """The files of a split, none where the data lie elsewhere."""
    if (own := getattr(task, f"{split}_file", None)) is not None:
        return [Path(own)]
    kind, folder = task.location
    if kind != "files" or folder is None or not folder.is_dir():
        return []
    return [file for form in task.dataset.all_forms() for file in form.found(folder, split)]


@dataclass(frozen=True)
class HeldOut:
    """Records ready to be asked of.

    Attributes:
        settings: of the evaluations.
        objective: gives the losses; of classes also the answers.
        records: one at least.
        public: whether figures of these records may be published.
        token_budget: most padded tokens in memory at once, as in training.
        scored: whether a file's records are also among those that the run is scored on.

    Raises:
        ConfigError: there is no accuracy to choose by.
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
        """The records, encoded."""
        return encode_all(self.objective, self.records)

    @property
    def baseline(self) -> float | None:
        """The accuracy of always answering the most frequent class; None of what is no class."""
        if not isinstance(self.objective, Choice):
            return None
        return majority([record.label for record in self.records])  # type: ignore[attr-defined]

    @torch.no_grad()
    def figures(
        self, model: Any, cohort: TrainingCohort, abandoned: Callable[[], bool] = lambda: False
    ) -> Figures | None:
        """What the model loses on the records; every rank must ask, and gets the same.

        Args:
            model: as it is trained; nothing of it is changed.
            cohort: the ranks, which each compute some of the batches.
            abandoned: asked between batches whether to stop.

        Returns:
            ``loss``, the mean over records of the loss that is trained on; ``accuracy`` of classes;
            ``perplexity`` per token of texts, where it is finite. None if it was abandoned.
        """
        batches = microbatches(range(len(self.examples)), lengths(self.examples), self.token_budget)
        own = len(batches)
        if cohort.sharded:  # whoever runs a layer waits for all: as many for each rank
            batches += [batches[-1]] * (-own % cohort.size)
        losses, right = [math.nan] * len(self.examples), 0
        with evaluating(model), random_state_kept(*model.parameters()):
            every = answered(batches, lambda batch: [self._of(model, batch)], cohort)
            for number, (batch, [(found, hits)]) in enumerate(every):
                if abandoned():
                    return None
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
        """The losses of some records, and how many of them were answered rightly."""
        device = next(model.parameters()).device
        made = self.objective.collate([self.examples[index] for index in batch]).to(device)
        if not isinstance(self.objective, Choice):
            return self.objective.losses(model, made).double().tolist(), 0
        logits, labels = self.objective.scores(model, made).double(), made.tensors["labels"]
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        if type(self.objective).losses is not Choice.losses:  # of somebody's own
            losses = self.objective.losses(model, made).double()
        return losses.tolist(), int((logits.argmax(1) == labels).sum())
