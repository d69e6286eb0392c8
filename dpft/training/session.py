"""The steps of one run, with what makes them safe to kill: ledger, logs and checkpoints."""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from dpft import runs
from dpft.config.errors import NO_STEP, ConfigError, DivergedError, ModelError
from dpft.config.schema import Run
from dpft.config.track import SERVICES
from dpft.models.load import LoadedModel
from dpft.parallel.cohort import own_part, together
from dpft.parallel.parts import put_together, room_for, taken_apart
from dpft.privacy.guarantee import warnings
from dpft.privacy.noise import Released
from dpft.privacy.untouched import written
from dpft.runs.atomic import Closing
from dpft.runs.memory import explained
from dpft.tasks.objectives.evaluation import not_finite_on_a_blank
from dpft.training.assembly import whole_again
from dpft.training.continuing import go_on, in_stretch
from dpft.training.evaluation import Evaluations
from dpft.training.loop import StepStatistics, train
from dpft.training.optim import make_optimizer
from dpft.training.progress import Progress
from dpft.training.setup import Prepared
from dpft.training.stopping import Stopping
from dpft.training.trackers import Figures, Tracking

_AUDIT = "audit"  # the folder under private/
# Of the tensors in a checkpoint.
_WEIGHTS, _OPTIMIZER = "weights/", "optimizer/"
_MORE_ROOM = (
    "free some memory, or take a machine with more, and run the same command again, which "
    "continues this run. A smaller optim.microbatch_tokens, or model.checkpointing=true, needs "
    "less memory and begins another run, which spends privacy of its own"
)


class Session(Closing):
    """Training from the newest good checkpoint on.

    Args:
        run: the settings.
        prepared: what is trained.
        directory: the run's folder, with ledger, logs and checkpoints; None on the ranks that do
            not hold it.
        progress: shows steps and warnings.
        tracker: receives the figures of every step; None: nothing is tracked.

    Raises:
        ConfigError, LedgerMismatchError: if the folder's run is not this one, or repeated steps
            would exceed its budget.
    """

    def __init__(
        self,
        run: Run,
        prepared: Prepared,
        directory: runs.RunDirectory | None,
        progress: Progress,
        tracker: Tracking | None = None,
    ) -> None:
        self._run = run
        self._tracker = tracker or Tracking(None, progress.warn)
        self._prepared = prepared
        self._directory = directory
        self._progress = progress
        self._clipper = prepared.parts.clipper
        self._mechanism = prepared.parts.mechanism
        self._ledger = None
        self._cohort = prepared.cohort
        if directory is not None and self._mechanism.private:
            self._ledger = runs.Ledger(directory.ledger, prepared.header, prepared.ledger)
        self._moved = prepared.parts.moved()
        self._names = list(self._moved)
        # Of a pipeline's parameters each rank trains its stages'.
        self._own = [
            name
            for name in self._names
            if not self._cohort.owners or name in self._clipper.parameters
        ]
        self._optimizer = make_optimizer(run.optim, iter(self._moved.values()))
        self._untouched = prepared.parts.untouched() if self._mechanism.private else None
        self.seconds = 0.0
        self._saved_at = time.monotonic()
        self._cohort.meet(word=f"{prepared.data} {prepared.model} {prepared.own}")
        saved = runs.checkpoint.load_latest(directory, self._cohort)
        with together(self._cohort):
            if directory is not None:
                self._check(directory, saved)
                if self._ledger is not None:
                    start = 0 if saved is None else saved.step
                    go_on(run, self._mechanism, directory, self._ledger, start, progress)
        self._start = self._done = self._saved = self._take_over(saved)
        self._named_best = None if saved is None else saved.state.get(runs.checkpoint.BEST)
        self._evaluations: Evaluations | None = None
        stretch = self._cohort.from_first(self._ledger.stretch if self._ledger else None)
        if stretch is not None and stretch.position:
            self._prepared = in_stretch(prepared, stretch)
        self._mechanism = self._prepared.parts.mechanism

    @property
    def prepared(self) -> Prepared:
        """What is trained, with the key and the accounting of the ledger's latest stretch."""
        return self._prepared

    def train(self) -> None:
        """Run the steps that are left; each is in the ledger before the weights move."""
        run, prepared, directory = self._run, self._prepared, self._directory
        names = [group.name for group in self._clipper.groups]
        start, repeated = self._start, self._mechanism.repeated
        doing = f"training with optim.microbatch_tokens={run.optim.token_budget}"
        with ExitStack() as stack:
            stack.enter_context(explained(doing, _MORE_ROOM))
            show = stack.enter_context(self._progress.training(start, self._mechanism))
            metrics = norms = None
            if directory is not None:
                metrics = stack.enter_context(runs.MetricsLog(directory.metrics, start))
                norms = stack.enter_context(
                    runs.NormsLog(directory.private, run.record_norms, names, resume_step=start)
                )

            void = warnings(self._mechanism.sampling, run.privacy.noise_seed)
            figures = Figures(self._mechanism, run.track.private, tuple(names), tuple(void))
            self._tracker.begin(start)
            stopping = Stopping(agreed=self._cohort.size > 1)
            stack.enter_context(self._kept(stopping))
            stack.enter_context(stopping.heard())
            self._evaluations = self._evaluated_until(start)
            if self._evaluations is not None:
                stack.enter_context(self._evaluations)

            def watched(step: int) -> bool:
                return run.record_norms is not None and step % run.record_norms == 0

            def after_step(step: int, statistics: StepStatistics) -> None:
                self.seconds += statistics.seconds
                summary = statistics.summary(self._cohort)
                recorded = statistics.norms_of_all(self._cohort) if watched(step) else []
                asked = self._evaluate(step + 1, stopping)
                if metrics is not None and norms is not None:
                    rate = self._optimizer.param_groups[0]["lr"]
                    more = {"position": step + repeated} if repeated else {}  # in the ledger
                    metrics.append(step, lr=rate, **summary, **more)
                    norms.append(step, recorded, statistics.signal, statistics.noise)
                    if self._tracker.tracks:
                        thresholds = tuple(statistics.released.thresholds)
                        values = figures.of_step(step, rate, thresholds, summary)
                        self._tracker.step(step + 1, values | asked)
                show(step, summary)
                if step & (step + 1) == 0:  # the first, and whenever there are twice as many
                    self._check_answers(step + 1, prepared.parts.loaded.model)
                self._done = step + 1
                self._save_if_due(stopping)

            if asked := self._evaluate(start, stopping):
                self._tracker.step(start, asked)
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
                cohort=self._cohort,
                pipeline=prepared.parts.pipeline,
                spend=self._spend,
                after_step=after_step,
                moving=stopping.moving,
                watched=watched,
            )
            if start < self._mechanism.steps:
                self._save(self._mechanism.steps)
                # Ranks agree on a signal behind a step, and no step follows this save.
                stopping.stop_if(self._cohort.agree(stopping.waiting, ""))
        if self._evaluations is not None:
            self._evaluations.warn()
        if self._ledger and self._ledger.steps_spent != self._mechanism.releases:
            raise runs.LedgerError(
                f"{self._ledger.path} counts {self._ledger.steps_spent} releases, of which "
                f"{self._mechanism.releases} are accounted for; expected as many. Please report "
                "this, and rely on no epsilon of this run"
            )

    def close(self) -> None:
        """Take the hooks off the model and close the ledger."""
        self._clipper.close()
        if self._ledger is not None:
            self._ledger.close()

    @property
    def evaluation(self) -> Mapping[str, Any]:
        """What the evaluations found, for the record; empty if there were none."""
        return {} if self._evaluations is None else self._evaluations.section()

    def whole_model(self) -> LoadedModel:
        """The trained model in one piece, on every rank; all must ask.

        With the weights that were the best by evaluation, if any were to be chosen.
        """
        best = None if self._evaluations is None else self._evaluations.best
        if best is not None and best < self._mechanism.steps:
            self._restore(best)
        loaded = whole_again(self._run, self._prepared.task, self._prepared.parts, self._cohort)
        if self._mechanism.steps:
            self._check_answers(self._mechanism.steps, loaded.model, whole=True)
        return loaded

    def _check_answers(self, step: int, model: Any, whole: bool = False) -> None:
        """Stop where weights are finite, but what the model computes with them is not.

        Every record would be left out from then on, by a run that learns nothing.

        Args:
            step: how many are behind the weights.
            model: of a divided one each rank has only a part, until training is over.
            whole: whether it is over.

        Raises:
            DivergedError: the loss of a blank, which is nobody's, is not finite.
        """
        if self._cohort.divided and not whole:
            return
        # A divided model is put together in another one, which the clipper does not listen to.
        with nullcontext() if self._cohort.divided else self._clipper.paused():
            what = not_finite_on_a_blank(self._prepared.objective, model)
        if what is not None:
            raise DivergedError(
                f"after step {step} the model has no finite loss for an empty record, so it "
                "answers nothing and learns nothing; expected finite numbers. Type a smaller "
                "optim.lr, which is another run; what this one spent stays in its ledger"
            )

    def _take_over(self, saved: runs.Checkpoint | None) -> int:
        """Set this rank's weights, optimizer and estimates to a checkpoint's; the first step."""
        if saved is None:
            return 0
        held = {
            name.removeprefix(_OPTIMIZER): like
            for name, like in saved.described().items()
            if name.startswith(_OPTIMIZER)
        }
        own = {key: like for key, like in held.items() if key.rpartition("/")[0] in self._own}
        state = room_for(self._optimizer, self._names, own)
        targets = {f"{_OPTIMIZER}{key}": tensor for key, tensor in state.items()}
        targets |= {f"{_WEIGHTS}{name}": self._moved[name].detach() for name in self._own}
        saved.fill(targets)
        rest = saved.state["optimizer"]
        put_together(self._optimizer, self._names, self._own, state, rest)
        if self._clipper.adaptive is not None:
            self._clipper.move(saved.state["estimates"])
        return saved.step

    def _restore(self, step: int) -> None:
        """Set this rank's weights to those behind a step, whose checkpoint was kept for it."""
        saved = runs.checkpoint.load_best(self._directory, step, self._cohort)
        saved.fill({f"{_WEIGHTS}{name}": self._moved[name].detach() for name in self._own})

    def _evaluated_until(self, start: int) -> Evaluations | None:
        """The evaluations up to a step, to go on with; None if none are asked for."""
        if self._prepared.held_out is None:
            return None
        return Evaluations(
            self._prepared.held_out,
            self._mechanism,
            self._directory,
            start=start,
            best=self._named_best,
            cohort=self._cohort,
            progress=self._progress,
            tracked=self._run.track.private and self._run.track.name not in SERVICES,
        )

    def _evaluate(self, step: int, stopping: Stopping) -> dict[str, float]:
        """Ask the model behind so many steps if it is due; what of it may be tracked."""
        evaluations = self._evaluations
        if evaluations is None or not evaluations.due(step):
            return {}
        with self._clipper.paused():
            return evaluations.ask(
                step,
                self._prepared.parts.loaded.model,
                # One process is told to stop amid it, and goes on with it when it is begun again.
                lambda: self._cohort.size == 1 and stopping.asked is not None,
            )

    def _check(self, directory: runs.RunDirectory, saved: runs.Checkpoint | None) -> None:
        """That the checkpoint to go on from is of this run."""
        ledger, auditor = self._ledger, self._prepared.auditor
        if saved is None:
            if ledger and ledger.next_step:
                self._progress.say(
                    f"{directory.path} has no checkpoint: the {ledger.next_step} steps of "
                    "its ledger are repeated from the first on"
                )
            return
        for warning in saved.warnings:
            self._progress.warn(warning)
        held = {name for name in saved.written if name.startswith(_WEIGHTS)}
        if held != {f"{_WEIGHTS}{name}" for name in self._names}:
            raise ConfigError(
                f"the checkpoint holds {len(held)} parameters, the model trains "
                f"{len(self._moved)}; expected the same ones: was the model replaced on disk? Type "
                "force=true to start over"
            )
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

    def _spend(self, step: int, released: Released) -> None:
        if not self._mechanism.private:
            return
        entry: dict[str, Any] = {"epsilon_rdp": self._mechanism.rdp_after(step + 1)}
        if all(p.device.type == "cpu" for p in self._clipper.parameters.values()):
            # Elsewhere a replay may round differently, and count a norm at its threshold otherwise.
            digest = release_digest(self._clipper.parameters, released)
            if self._cohort.divided:
                parts = "".join(self._cohort.gather(digest))
                digest = hashlib.sha256(parts.encode()).hexdigest()[:16]
            entry["update"] = digest
            if released.thresholds:  # from the noisy counts of earlier steps: public
                entry["thresholds"] = [float(f"{c:.6g}") for c in released.thresholds]
        # What was released is one release only if it is the same on every rank; what is not is
        # released by none, and has no line, which would stop every replay.
        self._cohort.meet(word=f"{entry}")
        with together(self._cohort):
            if self._ledger is not None:
                self._ledger.spend(step, **entry)

    def _save_if_due(self, stopping: Stopping) -> None:
        """Save behind so many steps, so many minutes, or before ranks stop, all of them.

        Raises:
            KeyboardInterrupt: one was told to.
        """
        done, minutes = self._done, self._run.checkpoint_minutes
        # The first rank's clock decides: ranks save together, and clocks differ.
        since = time.monotonic() - self._saved_at
        late = self._cohort.rank == 0 and minutes is not None and since >= 60 * minutes
        due, *stop = self._cohort.agree([late, *stopping.waiting], "")
        best = self._evaluations is not None and self._evaluations.best == done
        due = due or best or done % self._run.checkpoint_every == 0
        due = due and done < self._mechanism.steps
        if due or any(stop):
            self._save(done)
        stopping.stop_if(stop)

    @contextmanager
    def _kept(self, stopping: Stopping) -> Iterator[None]:
        """Around the steps: an interrupt says what is saved; one process saves what it can."""
        try:
            yield
        except KeyboardInterrupt as told:
            # Several ranks have saved already, unless this is the second interrupt.
            if self._cohort.size == 1 and stopping.whole and self._done > self._saved:
                try:
                    self._save(self._done)
                except runs.RunError as error:
                    told.add_note(f"{error}")
            told.add_note(
                f"step {self._saved} of {self._mechanism.steps} is saved"
                if self._saved
                else "no step is saved: those that were taken are repeated exactly, and count once"
                if self._done
                else NO_STEP
            )
            raise

    def _save(self, step: int) -> None:
        """Write a checkpoint, of the same form whatever the layout; every rank its part.

        Raises:
            ModelError: if what nobody trains has changed since training began.
        """
        touched = [] if self._untouched is None else self._untouched.changed()
        with together(self._cohort):
            if touched:
                raise ModelError(written(touched, self._prepared.parts.loaded.model))
        held, rest = taken_apart(self._optimizer, self._names, self._cohort)
        tensors = {f"{_WEIGHTS}{name}": self._moved[name].detach() for name in self._own}
        tensors |= {f"{_OPTIMIZER}{key}": tensor for key, tensor in held.items()}
        state = {
            "optimizer": rest,
            "seconds": self.seconds,
            "data": self._prepared.data,
            "model": self._prepared.model,
        }
        if self._evaluations is not None and self._evaluations.best is not None:
            state[runs.checkpoint.BEST] = self._evaluations.best
        if self._clipper.adaptive is not None:
            state["estimates"] = list(self._clipper.estimates)
        if self._prepared.auditor is not None and self._directory is not None:
            # Not in the checkpoint, which the guarantee covers: the scores are noiseless.
            audited = self._prepared.auditor.state()
            runs.save_private_state(self._directory, _AUDIT, step, audited)
        runs.checkpoint.save(self._directory, step, tensors, state, self._cohort)
        self._saved, self._saved_at = step, time.monotonic()


def release_digest(parameters: Mapping[str, torch.nn.Parameter], released: Released) -> str:
    """SHA-256 (16 hex) of the noisy gradients, and of the noisy counts where thresholds adapt.

    These are releases already, so it gives nothing away. A replayed step must have the same, or
    other code or another machine would release a second version of the step under the same noise.
    Of this rank's parts, where gradients are divided over ranks.
    """
    digest = hashlib.sha256()
    for parameter in parameters.values():
        if parameter.grad is not None:
            digest.update(own_part(parameter.grad).contiguous().numpy().data)
    digest.update(array("d", released.fractions).tobytes())
    return digest.hexdigest()[:16]
