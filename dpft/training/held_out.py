"""Held-out records: which may be scored, and evaluations on them while a run trains.

Scores have no noise, so they must not be of training records. Evaluations do not change the
training: weights, gradients, random numbers and the calls that the clipper observes are the same
with and without them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dpft import runs
from dpft.config.schema import Evaluate
from dpft.parallel.cohort import together
from dpft.privacy import microbatches
from dpft.privacy.checks import random_state_kept
from dpft.runs.atomic import Closing
from dpft.runs.log import REMEDY, read_log
from dpft.tasks.objectives.classifier import Choice
from dpft.tasks.objectives.evaluation import answered, evaluating
from dpft.tasks.objectives.objective import encode_all, lengths
from dpft.tasks.objectives.record_types import Record
from dpft.tasks.task import Task
from dpft.training.mechanisms import check_scored

if TYPE_CHECKING:
    from dpft.training.setup import Prepared

Figures = dict[str, float]
_FILE = "evaluations.jsonl"  # in private/


def held_out_records(settings: Evaluate, task: Task) -> Sequence[Record]:
    """Return the records that a run is evaluated on; none without `Evaluate.every`."""
    if settings.every is None:
        return ()
    records = task.records(settings.split)[: task.limit_eval]
    check_scored(task, settings.split, records)
    count = min(len(records), settings.max_records or len(records))
    return [records[place * len(records) // count] for place in range(count)]


class Evaluations(Closing):
    """Evaluations of one run on held-out records, by the number of steps before them.

    Args:
        prepared: the run, which has such records.
        start: the step to continue with.
    """

    def __init__(self, prepared: Prepared, start: int) -> None:
        run, mechanism, progress = prepared.run, prepared.parts.mechanism, prepared.progress
        cohort, directory = prepared.cohort, prepared.directory
        self._objective, self._split = prepared.objective, run.evaluate.split
        self._parts = prepared.parts
        self._examples = encode_all(prepared.objective, prepared.held_out)
        self._tokens = run.optim.tokens  # most padded tokens in memory at once, as in training
        self._steps, self._cohort, self._progress = mechanism.steps, cohort, progress
        noised = mechanism.noise_multiplier > 0
        self._public = run.evaluate.public or prepared.task.published
        self._shown = self._public or progress.may_tell(noised)
        self._tracked = self._public or not noised
        epoch = max(1, mechanism.dataset_size // mechanism.batch_size)
        self._between = run.evaluate.steps_between(epoch)
        self._log, entries = None, []
        with together(cohort):
            if directory is not None:
                file = directory.private / _FILE
                # Unlike a step's line, a line of step N is of the weights after N steps.
                self._log = runs.MetricsLog(file, start + 1)
                entries = read_log(file, REMEDY)
        # JSON lacks NaN, which the log writes as text.
        self._history: dict[int, Figures] = {
            entry["step"]: {k: float(v) for k, v in entry.items() if k != "step"}
            for entry in cohort.broadcast_object(entries)
        }
        if not self._shown:
            progress.say(
                f"figures of the {self._split} split go to private/{_FILE}; where they may be "
                "published, type evaluate.public=true"
            )

    def ask(self, step: int) -> Figures:
        """Evaluate the model after so many steps, if it is time; return what may be tracked."""
        if step in self._history or (step % self._between and step != self._steps):
            return {}
        with self._parts.clipper.paused():
            found = self._history[step] = self.figures(self._parts.loaded.model)
        if self._log is not None:
            self._log.append({"step": step, **found})
        if self._shown:
            text = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
            self._progress.say(f"step {step}/{self._steps}  {self._split}: {text}")
        return {f"eval/{name}": value for name, value in found.items()} if self._tracked else {}

    @torch.no_grad()
    def figures(self, model: Any) -> Figures:
        """Return the model's loss on the records; a collective, with the same result on all ranks.

        Returns:
            ``loss``, the mean over records of the loss that is trained on; ``accuracy`` of classes.
        """
        examples = self._examples
        batches = microbatches(range(len(examples)), lengths(examples), self._tokens)
        losses, right = [math.nan] * len(examples), 0
        with evaluating(model), random_state_kept(*model.parameters()):
            every = answered(batches, lambda batch: [self._of(model, batch)], self._cohort)
            for batch, [(found, hits)] in every:
                right += hits
                for index, loss in zip(batch, found, strict=True):
                    losses[index] = loss
        figures = {"loss": math.fsum(losses) / len(losses)}
        if isinstance(self._objective, Choice):
            figures["accuracy"] = right / len(losses)
        return figures

    def _of(self, model: Any, batch: Sequence[int]) -> tuple[list[float], int]:
        """Return the losses of some records, and how many of them are classified correctly."""
        device = next(model.parameters()).device
        made = self._objective.collate([self._examples[index] for index in batch]).to(device)
        if not isinstance(self._objective, Choice):
            return self._objective.losses(model, made).double().tolist(), 0
        logits, labels = self._objective.scores(model, made).double(), made.tensors["labels"]
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        if type(self._objective).losses is not Choice.losses:  # overridden by a subclass
            losses = self._objective.losses(model, made).double()
        return losses.tolist(), int((logits.argmax(1) == labels).sum())

    def section(self) -> dict[str, Any]:
        """Return the record's section, which has figures only if they may be published."""
        section: dict[str, Any] = {
            "of": self._split,
            "public": self._public,
            "records": len(self._examples),
            "every": self._between,
            "evaluations": len(self._history),
        }
        if self._public:
            section["history"] = [{"step": n, **self._history[n]} for n in sorted(self._history)]
        return section

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()
