"""The evaluations of one run on held-out records, and the step that was best by them.

Evaluations do not change the training: weights, gradients, random numbers and the calls that the
clipper observes are the same with and without them. The training records' guarantee is that of all
steps, since a choice by evaluation has looked at the weights of each.
"""

import math
from collections.abc import Mapping
from typing import Any

from dpft import runs
from dpft.config.errors import LogError
from dpft.parallel.cohort import TrainingCohort, together
from dpft.privacy import Mechanism
from dpft.runs.atomic import Closing
from dpft.runs.log import read_checked
from dpft.tasks.scores import lower_is_better
from dpft.training.held_out import Figures, HeldOut
from dpft.training.progress import Progress

FILE = "evaluations.jsonl"  # in private/
# Every line is needed: the best step, and so the weights that are kept, follows from them.
_REMEDY = (
    "put the file back from a copy, or remove it and the folder checkpoints/, and all steps are "
    "repeated exactly: they count once"
)


class Evaluations(Closing):
    """The evaluations of one run, by the number of steps behind them."""

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
                file = directory.private / FILE
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
                f"private/{FILE} tells nothing of step {best}, which was the best until step "
                f"{start}; expected its line: {_REMEDY}"
            )
        if not self._shown:
            progress.say(
                f"figures of {held_out.settings.where} go to private/{FILE}; where they may be "
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
        """Evaluate the model after so many steps, see `HeldOut.figures`; return what is tracked."""
        found = self._held_out.figures(model, self._cohort)
        self._history[step] = found
        if self._log is not None:
            self._log.append(step, **found)
        if self._shown:
            where, figures = self._held_out.settings.where, found.items()
            said = ", ".join(f"{name} {value:.4f}" for name, value in figures)
            brief = f"{where} {found['loss']:.3f}"
            self._progress.evaluated(f"step {step}/{self._steps}", f"{where}: {said}", brief)
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
            section["baseline"] = held_out.baseline
        return section

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()
