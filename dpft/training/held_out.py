"""Held-out records: which may be scored, and evaluations on them while a run trains.

Scores have no noise, so they must not be of training records. Evaluations do not change the
training: weights, gradients, random numbers and the calls that the clipper observes are the same
with and without them. The guarantee is that of all steps, since the choice of the best step has
looked at the weights of each.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from dpft import runs
from dpft.config.errors import ConfigError, DataError, LogError, SplitError
from dpft.config.schema import Evaluate, Run
from dpft.parallel.cohort import TrainingCohort, together
from dpft.privacy import Mechanism, microbatches
from dpft.privacy.untouched import random_state_kept
from dpft.runs.atomic import Closing
from dpft.runs.log import read_checked
from dpft.tasks.base import Task
from dpft.tasks.metrics.scorers import token_perplexity
from dpft.tasks.metrics.shown import majority
from dpft.tasks.objectives.base import Instance, Objective
from dpft.tasks.objectives.causal import Causal
from dpft.tasks.objectives.classifier import Choice
from dpft.tasks.objectives.encoding import encode_all, lengths
from dpft.tasks.objectives.evaluation import answered, evaluating
from dpft.tasks.objectives.records import Record
from dpft.tasks.own import contents_of
from dpft.tasks.scores import lower_is_better
from dpft.training.progress import Progress

Figures = dict[str, float]
_MOST = 0.5  # share of records that training records may repeat
_FILE = "evaluations.jsonl"  # in private/
# Every line is needed: the best step, and so the weights that are kept, follows from them.
_REMEDY = (
    "put the file back from a copy, or remove it and the folder checkpoints/, and all steps are "
    "repeated exactly: they count once"
)


def held_out_records(settings: Evaluate, task: Task) -> Sequence[Record]:
    """Return the records that a run is evaluated on; none without `Evaluate.every`."""
    if settings.every is None:
        return ()
    records: Sequence[Record]
    if settings.file is not None:
        records, typed = task.records_of(Path(settings.file)), f"evaluate.file={settings.file}"
        if not records:
            raise DataError(f"{typed} has no rows; expected at least one record")
        # Any file may be given, also one of a published data set's training records.
        known = np.isin(contents_of(records), contents_of(task.records("train")))
        share = max(task.repeated(records), float(known.mean()))
        check_repeated(share, typed, "a file of them, or evaluate.split")
    else:
        try:
            records = task.records(settings.split)[: task.limit_eval]
        except SplitError as error:
            advice = f"evaluate.split={settings.split}: {error}; or type evaluate.file=FILE"
            raise SplitError(advice) from error
        check_scored(task, settings.split, records, "evaluate")
    return records


def must_be_apart(run: Run, task: Task) -> bool:
    """Return whether scores must not be of the training records, since these have a guarantee.

    Synthetic records cost no budget, but the records that they stand for may have.
    """
    return run.clip.private or task.synthetic is not None


def check_scored(
    task: Task, split: str, records: Sequence[Record], by: Literal["task", "evaluate"] = "task"
) -> None:
    """Raise ConfigError for a split that is trained on: of the hub in part, else most of it.

    Args:
        task: trained on its ``train`` split.
        split: ``dev`` or ``test``.
        records: those of the split.
        by: the group of settings that chose the split.
    """
    if task.location[0] == "hub" and task.synthetic is None:
        # Slices of one split may overlap.
        train, scored = (
            {part.partition("[")[0].strip() for part in (name or "").split("+")}
            for name in (getattr(task, f"{one}_split", None) for one in ("train", split))
        )
        if same := (train & scored) - {""}:
            typed = f"task.{split}_split={getattr(task, f'{split}_split')}"
            instead = "evaluate.file=FILE" if by == "evaluate" else f"task.{split}_share=0.1"
            raise ConfigError(
                f"{typed} is of the hub's split {same.pop()}, which is trained on, and no noise "
                f"covers what is made of it; expected other records: type {instead}"
            )
    if not getattr(task, f"{split}_share", 0):  # else a digest of the record holds it out
        instead = f"give a file of them, or type task.{split}_share=0.1 to hold some back"
        check_repeated(task.repeated(records), f"the {split} split", instead)


def check_repeated(share: float, where: str, instead: str) -> None:
    """Raise ConfigError if most records are trained on, in whatever form and order they are saved.

    A few may be, since people say the same things; `dpft data check` counts them.
    """
    if share > _MOST:
        raise ConfigError(
            f"most records of {where} are trained on, word for word, and no noise covers what is "
            f"computed of them; expected other records: {instead}"
        )


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

    @classmethod
    def of(
        cls,
        run: Run,
        task: Task,
        objective: Objective,
        records: Sequence[Record],
        instances: Sequence[Instance],
    ) -> "HeldOut":
        """Return the held-out records of a run, which is scored on ``instances``."""
        settings, scored = run.evaluate, False
        if settings.file is not None:
            answered = contents_of(one.record for one in instances)
            scored = bool(np.isin(contents_of(records), answered).any())
        public = settings.public or (settings.file is None and task.published)
        return cls(settings, objective, records, public, run.optim.tokens, scored)

    @cached_property
    def examples(self) -> list[Any]:
        return encode_all(self.objective, self.records)

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


class Evaluations(Closing):
    """The evaluations of one run, by the number of steps before them.

    Args:
        start: the step to continue with.
        best: the best step so far, as the checkpoint has it.
        tracked: whether a tracker may receive figures that must not be published.
    """

    def __init__(
        self,
        held_out: HeldOut,
        mechanism: Mechanism,
        directory: runs.RunDirectory | None,
        *,
        start: int,
        best: int | None,
        cohort: TrainingCohort,
        progress: Progress,
        tracked: bool,
    ) -> None:
        self._held_out, self._steps = held_out, mechanism.steps
        self._cohort, self._progress = cohort, progress
        noised = mechanism.noise_multiplier > 0
        self._shown = held_out.public or progress.may_tell(noised)
        self._tracked = held_out.public or tracked or not noised
        epoch = max(1, mechanism.dataset_size // mechanism.batch_size)
        self._between = held_out.settings.steps_between(epoch)
        self._log = None
        entries = []
        with together(cohort):
            if directory is not None:
                file = directory.private / _FILE
                # Before the log, which cuts lines off: a damaged step must not choose them.
                known = read_checked(file, _REMEDY)
                # Unlike a step's line, a line of step N is of the weights after N steps.
                entries = [entry for entry in known if entry["step"] <= start]
                self._log = runs.MetricsLog(file, start + 1, _REMEDY, checksums=True)
        # JSON lacks NaN, which the log writes as text.
        self._history: dict[int, Figures] = {
            entry["step"]: {k: float(v) for k, v in entry.items() if k != "step"}
            for entry in cohort.from_first(entries)
        }
        if best is not None and best not in self._history:
            raise LogError(
                f"private/{_FILE} has no line of step {best}, which was the best until step "
                f"{start}; expected its line: {_REMEDY}"
            )
        if not self._shown:
            progress.say(
                f"figures of {held_out.settings.where} go to private/{_FILE}; where they may be "
                "published, type evaluate.public=true"
            )

    @property
    def best(self) -> int | None:
        """The first of the best steps; None if none is chosen or no figure is finite."""
        metric = self._held_out.settings.best
        if metric is None:
            return None
        sign = 1 if lower_is_better(metric) else -1
        found = [
            (sign * figures[metric], step)
            for step, figures in self._history.items()
            if step > 0 and math.isfinite(figures[metric])
        ]
        return min(found)[1] if found else None

    def due(self, step: int) -> bool:
        """Return whether the weights after so many steps have still to be evaluated."""
        return step not in self._history and (step % self._between == 0 or step == self._steps)

    def ask(self, step: int, model: Any) -> Figures:
        """Evaluate the model after so many steps; return what may be tracked."""
        found = self._held_out.figures(model, self._cohort)
        self._history[step] = found
        if self._log is not None:
            self._log.append(step, **found)
        if self._shown:
            where = self._held_out.settings.where
            text = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
            brief = f"{where} {found['loss']:.3f}"
            self._progress.evaluated(f"step {step}/{self._steps}", f"{where}: {text}", brief)
        return {f"eval/{name}": value for name, value in found.items()} if self._tracked else {}

    def section(self) -> Mapping[str, Any]:
        """Return the record's section, which has figures only if they may be published."""
        held_out = self._held_out
        section: dict[str, Any] = {
            "of": held_out.settings.where,
            "public": held_out.public,
            "records": len(held_out.records),
            "every": self._between,
            "evaluations": len(self._history),
            "metric": held_out.settings.best,
            "chosen": self.best,
            **({"scored": True} if held_out.scored else {}),
        }
        if held_out.public:
            section["history"] = [{"step": n, **self._history[n]} for n in sorted(self._history)]
            # The accuracy of always answering the most frequent class.
            classes = isinstance(held_out.objective, Choice)
            labels = [record.label for record in held_out.records] if classes else []  # type: ignore[attr-defined]
            section["baseline"] = majority(labels) if classes else None
        return section

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()
