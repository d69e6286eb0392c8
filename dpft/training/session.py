"""The steps of one run, with what makes them safe to kill: ledger, logs and checkpoints."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from dpft import runs
from dpft.config.errors import ConfigError
from dpft.config.schema import Run
from dpft.parallel.cohort import together
from dpft.privacy import Clipper
from dpft.privacy.noise import Released
from dpft.runs.closing import Closing
from dpft.training.loop import StepStatistics, train
from dpft.training.optim import make_optimizer
from dpft.training.out_of_memory import Budget, explained
from dpft.training.progress import Progress
from dpft.training.setup import Prepared

_AUDIT = "audit"  # the folder under private/
_MICROBATCHES = "microbatches.json"  # under private/


class Session(Closing):
    """Training from the newest good checkpoint on.

    Args:
        run: the settings.
        prepared: what is trained.
        directory: the run's folder, with ledger, logs and checkpoints; None on the ranks that do
            not hold it.
        progress: shows steps and warnings.

    Raises:
        ConfigError, LedgerMismatchError: if the folder's run is not this one.
    """

    def __init__(
        self,
        run: Run,
        prepared: Prepared,
        directory: runs.RunDirectory | None,
        progress: Progress,
    ) -> None:
        self._run = run
        self._prepared = prepared
        self._directory = directory
        self._progress = progress
        self._clipper = prepared.parts.clipper
        self._mechanism = prepared.parts.mechanism
        self._ledger = None
        self._cohort = prepared.cohort
        if directory is not None and self._mechanism.private:
            self._ledger = runs.Ledger(directory.ledger, prepared.header())
        reparametrisation = prepared.parts.loaded.reparametrisation
        self._moved = (
            self._clipper.parameters if reparametrisation is None else reparametrisation.moved()
        )
        self._optimizer = make_optimizer(run.optim, iter(self._moved.values()))
        self.seconds = 0.0
        with together(self._cohort, f"{prepared.data} {prepared.model}"):
            self._start = 0 if directory is None else self._resume(directory)
        self._start = self._share_start()

    def train(self) -> None:
        """Run the steps that are left; each is in the ledger before the weights move."""
        run, prepared, directory = self._run, self._prepared, self._directory
        names = [group.name for group in self._clipper.groups]
        start = self._start
        budget = Budget(
            run.optim.microbatch_tokens,
            halve=run.out_of_memory == "halve",
            file=None if directory is None else directory.private / _MICROBATCHES,
            released=self._ledger.steps_spent if self._ledger else 0,
            warn=self._progress.warn,
            fixed=prepared.units.shapes is not None,
        )
        with ExitStack() as stack:
            stack.enter_context(
                explained(f"training with optim.microbatch_tokens={run.optim.microbatch_tokens}")
            )
            show = stack.enter_context(self._progress.training(start, self._mechanism))
            metrics = norms = None
            if directory is not None:
                metrics = stack.enter_context(runs.MetricsLog(directory.metrics, start))
                norms = stack.enter_context(
                    runs.NormsLog(directory.private, run.record_norms, names, resume_step=start)
                )

            def after_step(step: int, statistics: StepStatistics) -> None:
                self.seconds += statistics.seconds
                summary = statistics.summary()
                if metrics is not None and norms is not None:
                    rate = self._optimizer.param_groups[0]["lr"]
                    metrics.append(step, lr=rate, **summary)
                    norms.append(step, statistics.norms)
                show(step, summary)
                done = step + 1
                if done % run.checkpoint_every == 0 and done < self._mechanism.steps:
                    self._save(done)

            train(
                model=prepared.parts.loaded.model,
                data=prepared.units,
                clipper=self._clipper,
                mechanism=self._mechanism,
                optimizer=self._optimizer,
                settings=run.optim,
                key=prepared.key,
                start=start,
                reparametrisation=prepared.parts.loaded.reparametrisation,
                audit=prepared.auditor,
                budget=budget,
                cohort=self._cohort,
                spend=self._spend,
                after_step=after_step,
            )
            if start < self._mechanism.steps:
                self._save(self._mechanism.steps)

    def close(self) -> None:
        """Take the hooks off the model and close the ledger."""
        self._clipper.close()
        if self._ledger is not None:
            self._ledger.close()

    def _share_start(self) -> int:
        """The first rank's step to begin with, and with it its weights, optimizer and estimates."""
        start = self._cohort.from_first(self._start)
        if start and self._cohort.size > 1:
            tensors = {n: p.detach().cpu() for n, p in self._moved.items()}
            held = (tensors, self._optimizer.state_dict(), self._clipper.estimates)
            tensors, optimizer, estimates = self._cohort.from_first(held)
            if self._directory is None:
                saved = runs.Checkpoint(start, tensors, {"estimates": estimates}, Path())
                _restore(self._clipper, self._moved, saved)
                self._optimizer.load_state_dict(optimizer)
        return start

    def _resume(self, directory: runs.RunDirectory) -> int:
        """The step to begin with; weights, optimizer and thresholds are those of a checkpoint."""
        ledger, auditor = self._ledger, self._prepared.auditor
        saved = runs.checkpoint.load_latest(directory, ledger.steps_spent if ledger else None)
        if saved is None:
            if ledger and ledger.steps_spent:
                self._progress.say(
                    f"{directory.path} has no checkpoint: the {ledger.steps_spent} steps of "
                    "its ledger are repeated from the first on"
                )
            return 0
        for warning in saved.warnings:
            self._progress.warn(warning)
        _restore(self._clipper, self._moved, saved)
        self._optimizer.load_state_dict(saved.state["optimizer"])
        if saved.state["data"] != self._prepared.data:
            raise ConfigError(
                f"the training data is not what {directory.path} began with; expected the "
                "same records in the same order. Restore them, or type force=true to start over"
            )
        if saved.state["model"] != self._prepared.model:
            raise ConfigError(
                f"the model is not what {directory.path} began with; expected the same "
                "weights and tokenizer. Put them back, or type force=true to start over"
            )
        self.seconds = float(saved.state["seconds"])
        if auditor is not None:
            auditor.restore(runs.load_private_state(directory, _AUDIT, saved.step))
        self._progress.say(
            f"continuing {directory.path} at step {saved.step} of {self._mechanism.steps}"
        )
        return saved.step

    def _spend(self, step: int, released: Released) -> None:
        if not self._mechanism.private:
            return
        entry: dict[str, Any] = {"epsilon_rdp": self._mechanism.rdp_after(step + 1)}
        if self._prepared.parts.loaded.model.device.type == "cpu":
            # Elsewhere a replay may round differently.
            entry["update"] = release_digest(self._clipper.parameters, released)
            if released.thresholds:  # from the noisy counts of earlier steps: public
                entry["thresholds"] = [float(f"{c:.6g}") for c in released.thresholds]
        # What was released is one release only if it is the same on every rank.
        with together(self._cohort, f"{entry}"):
            if self._ledger is not None:
                self._ledger.spend(step, **entry)

    def _save(self, step: int) -> None:
        if self._directory is None:
            return
        state = {
            "optimizer": self._optimizer.state_dict(),
            "seconds": self.seconds,
            "data": self._prepared.data,
            "model": self._prepared.model,
        }
        if self._clipper.adaptive is not None:
            state["estimates"] = list(self._clipper.estimates)
        if self._prepared.auditor is not None:
            # Not in the checkpoint, which the guarantee covers: the scores are noiseless.
            audited = self._prepared.auditor.state()
            runs.save_private_state(self._directory, _AUDIT, step, audited)
        runs.checkpoint.save(self._directory, step, self._moved, state)


@torch.no_grad()
def _restore(
    clipper: Clipper, parameters: Mapping[str, torch.nn.Parameter], saved: runs.Checkpoint
) -> None:
    tensors = saved.tensors
    if set(parameters) != set(tensors):
        raise ConfigError(
            f"the checkpoint holds {len(tensors)} parameters, the model trains {len(parameters)}; "
            "expected the same ones: was the model replaced on disk? Type force=true to start over"
        )
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
    if clipper.adaptive is not None:
        clipper.move(saved.state["estimates"])


def release_digest(parameters: Mapping[str, torch.nn.Parameter], released: Released) -> str:
    """SHA-256 (16 hex) of the noisy gradients, and of the noisy counts where thresholds adapt.

    These are releases already, so it gives nothing away. A replayed step must have the same, or
    other code or another machine would release a second version of the step under the same noise.
    """
    digest = hashlib.sha256()
    for parameter in parameters.values():
        if parameter.grad is not None:
            digest.update(parameter.grad.contiguous().numpy().data)
    digest.update(array("d", released.fractions).tobytes())
    return digest.hexdigest()[:16]
