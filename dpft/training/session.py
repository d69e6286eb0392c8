"""The steps of one run, made safe to kill: ledger, logs, checkpoints, and where it continues.

A run that is killed has released steps that its last checkpoint does not hold. On the same devices
they are replayed: same batches, same noise, same sums, so that nothing new is released. On other
devices, threads or ranks sums are rounded differently. The same noise on them would release, by
subtraction, the difference of two sums without noise. So the run continues at the end of the
ledger: the repeated steps have fresh batches and noise and count again.

Batches are drawn anew too, and not only the noise. Two releases on one Poisson sample share the
event that a record was drawn: they are one subsampled mechanism of less noise, which costs more
than two whose samples are independent, and which no count of steps describes.
"""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from dpft import runs
from dpft.config.errors import NO_STEP, ConfigError, DivergedError, ModelError
from dpft.config.schema import Run
from dpft.models.load import LoadedModel
from dpft.parallel.cohort import TrainingCohort, own_part, together
from dpft.parallel.parts import put_together, room_for, taken_apart
from dpft.privacy import Clipper, Mechanism
from dpft.privacy.guarantee import warnings
from dpft.privacy.noise import Released
from dpft.privacy.rounding import up
from dpft.privacy.untouched import written
from dpft.runs.atomic import Closing
from dpft.runs.environment import explained
from dpft.runs.identity import differences
from dpft.tasks.objectives.evaluation import not_finite_on_a_blank
from dpft.training.executors import Programs
from dpft.training.held_out import Evaluations
from dpft.training.loop import Phase, train
from dpft.training.progress import Progress
from dpft.training.setup import Prepared, make_optimizer, whole_again
from dpft.training.statistics import StepStatistics

if TYPE_CHECKING:
    from dpft.training.trackers import Tracking

_AUDIT = "audit"  # the folder under private/
# Prefixes of the tensors in a checkpoint.
_WEIGHTS, _OPTIMIZER = "weights/", "optimizer/"
_MORE_ROOM = (
    "free some memory, or take a machine with more, and run the same command again, which "
    "continues this run. A smaller optim.microbatch_tokens, or model.checkpointing=true, needs "
    "less memory and starts another run, which costs privacy again"
)


class Session(Closing):
    """Training from the newest good checkpoint on.

    Attributes:
        prepared: with the key and the accounting of the ledger's latest stretch.
        seconds: that the steps took, those before the checkpoint included.

    Raises:
        ConfigError, LedgerMismatchError: the folder's run is not this one, or repeated steps
            would exceed its budget.
    """

    def __init__(
        self,
        run: Run,
        prepared: Prepared,
        directory: runs.RunDirectory | None,
        progress: Progress,
        tracker: Tracking | None = None,
        lap: Callable[[Phase], None] = lambda phase: None,
    ) -> None:
        self._run, self._directory, self._progress = run, directory, progress
        self._tracker, self._lap = tracker, lap
        self._cohort, self._clipper = prepared.cohort, prepared.parts.clipper
        self._mechanism = prepared.parts.mechanism
        self._ledger = None
        if directory is not None and self._mechanism.private:
            self._ledger = runs.Ledger(directory.ledger, prepared.header)
        self._moved = prepared.parts.moved()
        self._names = list(self._moved)
        # Each rank of a pipeline trains the parameters of its stages.
        self._own = [
            name
            for name in self._names
            if not self._cohort.owners or name in self._clipper.parameters
        ]
        self._optimizer = make_optimizer(run.optim, iter(self._moved.values()))
        self._untouched = prepared.parts.untouched() if self._mechanism.private else None
        self.prepared, self.seconds = prepared, 0.0
        self._saved_at = time.monotonic()
        header = prepared.header
        own = header["compute"].get("plugins", {})
        self._cohort.barrier(word=f"{header['data']} {header['model']} {own}")
        saved = runs.checkpoint.load(directory, self._cohort)
        with together(self._cohort):
            if directory is not None:
                self._check(directory, saved)
                if self._ledger is not None:
                    start = 0 if saved is None else saved.step
                    go_on(run, self._mechanism, directory, self._ledger, start, progress)
        self._start = self._done = self._saved = self._take_over(saved)
        self._evaluations: Evaluations | None = None
        stretch = self._cohort.broadcast_object(self._ledger.stretch if self._ledger else None)
        if stretch is not None and stretch.position:  # not the ledger's first stretch
            key = stretch.key(prepared.key)
            self._mechanism = replace(self._mechanism, repeated=stretch.repeated)
            parts = replace(prepared.parts, mechanism=self._mechanism)
            self.prepared = replace(prepared, key=key, units=prepared.units.under(key), parts=parts)

    def train(self) -> None:
        """Run the steps that are left; each is in the ledger before the weights move."""
        run, prepared, directory = self._run, self.prepared, self._directory
        names = [group.name for group in self._clipper.groups]
        start, repeated, model = self._start, self._mechanism.repeated, prepared.parts.loaded.model
        doing = f"training with optim.microbatch_tokens={run.optim.tokens}"
        with ExitStack() as stack:
            stack.enter_context(explained(doing, _MORE_ROOM))
            stack.push(self._note)
            show = stack.enter_context(self._progress.training(start, self._mechanism))
            metrics = norms = None
            if directory is not None:
                metrics = stack.enter_context(runs.MetricsLog(directory.metrics, start))
                norms = stack.enter_context(
                    runs.NormsLog(directory.private, run.record_norms, names, resume_step=start)
                )
            void = tuple(warnings(self._mechanism.sampling, run.privacy.noise_seed))
            if self._tracker is not None:
                self._tracker.begin(start)
            stop = stack.enter_context(Stop.by_signal())
            if prepared.held_out:
                self._evaluations = stack.enter_context(
                    Evaluations(
                        run,
                        prepared.objective,
                        prepared.held_out,
                        self._mechanism,
                        directory,
                        public=run.evaluate.public or prepared.task.published,
                        start=start,
                        cohort=self._cohort,
                        progress=self._progress,
                    )
                )

            def watched(step: int) -> bool:
                return run.record_norms is not None and step % run.record_norms == 0

            def evaluate(step: int) -> dict[str, float]:
                if self._evaluations is None or not self._evaluations.due(step):
                    return {}
                with self._clipper.paused():
                    return self._evaluations.ask(step, model)

            def after_step(step: int, statistics: StepStatistics) -> None:
                self.seconds += statistics.seconds
                summary = statistics.summary(self._cohort)
                recorded = statistics.norms_of_all(self._cohort) if watched(step) else []
                evaluated = evaluate(step + 1)
                if metrics is not None and norms is not None:
                    rate = self._optimizer.param_groups[0]["lr"]
                    more = {"position": step + repeated} if repeated else {}  # in the ledger
                    metrics.append(step, lr=rate, **summary, **more)
                    norms.append(step, recorded, statistics.signal, statistics.noise)
                    if self._tracker is not None:
                        from dpft.training.trackers import figures

                        thresholds = statistics.released.thresholds
                        found = figures(
                            self._mechanism, names, void, step, rate, thresholds, summary
                        )
                        self._tracker.step(step + 1, found | evaluated)
                show(step, summary)
                self._done = step + 1
                # After 1, 2, 4, 8 steps and so on, and after the last.
                if step & self._done == 0 or self._done == self._mechanism.steps:
                    self._check_answers(model)
                self._save_if_due(stop)

            evaluated = evaluate(start)
            if evaluated and self._tracker is not None:
                self._tracker.step(start, evaluated)
            programs = None
            if prepared.compiled:
                programs = Programs(prepared.units, model, self._clipper, run.precision)
            train(
                model=model,
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
                programs=programs,
                spend=self._spend,
                after_step=after_step,
                watched=watched,
                lap=self._lap,
            )
            if start < self._mechanism.steps:
                self._save(self._mechanism.steps)
            stop.if_any(self._cohort.agree(stop.received, ""))
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
        """The evaluations' section of the record; empty if there were none."""
        return {} if self._evaluations is None else self._evaluations.section()

    def whole_model(self) -> LoadedModel:
        """Return the trained model in one piece, on every rank; a collective."""
        loaded = whole_again(self._run, self.prepared.task, self.prepared.parts, self._cohort)
        if self._cohort.divided and self._mechanism.steps:
            self._check_answers(loaded.model, whole=True)
        return loaded

    def _check_answers(self, model: Any, whole: bool = False) -> None:
        """Raise DivergedError where a padding example, which is no record, has no finite loss.

        The weights are finite then, but every later record would be left out.
        """
        if self._cohort.divided and not whole:
            return  # each rank has only a part of the model
        # A divided model is put together in another one, which the clipper is not attached to.
        with nullcontext() if self._cohort.divided else self._clipper.paused():
            what = not_finite_on_a_blank(self.prepared.objective, model)
        if what is not None:
            raise DivergedError(
                f"after step {self._done} the model has no finite loss for an empty record, so it "
                "learns nothing. Type a smaller optim.lr, which is another run; what this one "
                "spent stays in its ledger"
            )

    def _take_over(self, saved: runs.Checkpoint | None) -> int:
        """Set this rank's weights, optimizer and estimates to a checkpoint's; return its step."""
        if saved is None:
            return 0
        held = {
            name.removeprefix(_OPTIMIZER): like
            for name, like in saved.written.items()
            if name.startswith(_OPTIMIZER)
        }
        own = {key: like for key, like in held.items() if key.rpartition("/")[0] in self._own}
        state = room_for(self._optimizer, self._names, own)
        targets = {f"{_OPTIMIZER}{key}": tensor for key, tensor in state.items()}
        targets |= {f"{_WEIGHTS}{name}": self._moved[name].detach() for name in self._own}
        saved.fill(targets)
        rest = saved.state["optimizer"]
        put_together(self._optimizer, self._names, self._own, state, rest)
        self._clipper.policy.restore(saved.state)
        return saved.step

    def _check(self, directory: runs.RunDirectory, saved: runs.Checkpoint | None) -> None:
        """Check that the checkpoint to continue from belongs to this run."""
        steps, auditor = self._mechanism.steps, self.prepared.auditor
        if saved is None:
            return
        held = {name for name in saved.written if name.startswith(_WEIGHTS)}
        of = {
            "names of trained parameters": (held, {f"{_WEIGHTS}{name}" for name in self._names}),
            "data": (saved.state["data"], self.prepared.header["data"]),
            "model": (saved.state["model"], self.prepared.header["model"]),
        }
        for what, (was, now) in of.items():
            if was != now:
                raise ConfigError(
                    f"the {what} is not what {directory.path} began with; expected the same "
                    "records in the same order, weights and tokenizer. Put it back, or type "
                    "force=true to start over"
                )
        self.seconds = float(saved.state["seconds"])
        if auditor is not None:
            auditor.restore(runs.load_private_state(directory, _AUDIT, saved.step))
        self._progress.say(f"continuing {directory.path} at step {saved.step} of {steps}")

    def _spend(self, step: int, released: Released) -> None:
        if not self._mechanism.private:
            return
        cohort = self._cohort
        entry = ledger_entry(self._mechanism, self._clipper, step, released, cohort)
        # A release that differs between ranks would be several. It has no line in the ledger,
        # which would stop every replay: no rank releases it.
        cohort.barrier(word=f"{entry}")
        with together(cohort):
            if self._ledger is not None:
                self._ledger.spend(step, **entry)

    def _save_if_due(self, stop: Stop) -> None:
        """Save after so many steps, so many minutes, or before all ranks stop.

        Raises:
            KeyboardInterrupt: any rank received a signal.
        """
        done, minutes = self._done, self._run.checkpoint_minutes
        # The first rank's clock decides: ranks save together, and clocks differ.
        since = time.monotonic() - self._saved_at
        late = self._cohort.rank == 0 and minutes is not None and since >= 60 * minutes
        due, *stopped = self._cohort.agree([late, *stop.received], "")
        due = due or done % self._run.checkpoint_every == 0
        if (due and done < self._mechanism.steps) or any(stopped):
            self._save(done)
        stop.if_any(stopped)

    def _note(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Add to an interrupt a note of what is saved."""
        if isinstance(error, KeyboardInterrupt):
            note = "no step is saved: those that were taken are repeated and count once"
            if self._saved:
                note = f"step {self._saved} of {self._mechanism.steps} is saved"
            error.add_note(note if self._done else NO_STEP)

    def _save(self, step: int) -> None:
        """Write a checkpoint of the same form for every layout; each rank writes its part."""
        touched = [] if self._untouched is None else self._untouched.changed()
        with together(self._cohort):
            if touched:
                raise ModelError(written(touched, self.prepared.parts.loaded.model))
        held, rest = taken_apart(self._optimizer, self._names, self._cohort)
        tensors = {f"{_WEIGHTS}{name}": self._moved[name].detach() for name in self._own}
        tensors |= {f"{_OPTIMIZER}{key}": tensor for key, tensor in held.items()}
        state = {
            "optimizer": rest,
            "seconds": self.seconds,
            "data": self.prepared.header["data"],
            "model": self.prepared.header["model"],
        }
        state |= self._clipper.policy.state()
        if self.prepared.auditor is not None and self._directory is not None:
            # Not in the checkpoint, which the guarantee covers: the scores are noiseless.
            audited = self.prepared.auditor.state()
            runs.save_private_state(self._directory, _AUDIT, step, audited)
        runs.checkpoint.save(self._directory, step, tensors, state, self._cohort)
        self._saved, self._saved_at = step, time.monotonic()


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Defers the first Ctrl-C or SIGTERM to the end of a step, where all ranks save and stop.

    A second Ctrl-C ends the process at once, which loses no more than a kill does. A second SIGTERM
    is ignored: a scheduler signals every process, and torchrun signals its ranks again.
    """

    def __init__(self) -> None:
        self._usual: dict[int, Any] = {}
        self._number: int | None = None

    @classmethod
    @contextmanager
    def by_signal(cls) -> Iterator[Stop]:
        """Receive signals, unless they are ignored or end the process by themselves."""
        stop = cls()
        if threading.current_thread() is threading.main_thread():  # others may set no handlers
            for number in _SIGNALS:
                if callable(usual := signal.getsignal(number)):
                    stop._usual[number] = usual
                    signal.signal(number, stop._receive)
        try:
            yield stop
        finally:
            for own, usual in stop._usual.items():
                if signal.getsignal(own) == stop._receive:
                    signal.signal(own, usual)

    @property
    def received(self) -> list[bool]:
        """Flags of the signals that were received, for ranks to agree on."""
        return [self._number == number for number in _SIGNALS]

    def if_any(self, received: Sequence[bool]) -> None:
        """Raise the usual handler's KeyboardInterrupt if any rank received a signal."""
        for number, was in zip(_SIGNALS, received, strict=True):
            if was:
                if usual := self._usual.get(number):
                    usual(number, None)
                raise KeyboardInterrupt

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._number is None:
            self._number = number
        elif not self._number == number == signal.SIGTERM:
            self.if_any([number == one for one in _SIGNALS])


def go_on(
    run: Run,
    mechanism: Mechanism,
    directory: runs.RunDirectory,
    ledger: runs.Ledger,
    start: int,
    progress: Progress,
) -> None:
    """Set where the ledger continues, and report what repeated steps cost before their release.

    Raises:
        LedgerMismatchError: steps would count again in a run with a target epsilon, in one that
            took all of its steps, or in an audited one.
    """
    was = ledger.stretch
    now = ledger.go_on(start)
    if now == was or start == mechanism.steps:  # nothing is left to be released
        return
    changes = differences(was.compute or {}, now.compute or {})
    changes = changes or [f"checkpoint: {was.step} -> {start}"]
    more = now.repeated - was.repeated
    before, after = (
        up(replace(mechanism, repeated=one.repeated).epsilon_after(mechanism.steps))
        for one in (was, now)
    )
    made, refused = runs.made_at_the_end(directory.path), None
    if run.audit.active:
        refused = "The canaries' scores are of all steps in a row"
    elif more and made is not None:
        refused = f"{made} exists, so the run took all of its steps and stated its epsilon"
    elif more and mechanism.target_epsilon is not None:
        refused = f"The budget of the run is epsilon {mechanism.target_epsilon:g}"
    if refused:
        listed = "\n  ".join(changes)
        raise runs.LedgerMismatchError(
            f"{ledger.path} counts {ledger.steps_spent} releases, {more} of them after the "
            f"checkpoint of step {start}. The run would continue under another header (old -> "
            f"new):\n  {listed}\nSo {more} steps would count again: epsilon {before} would become "
            f"{after}. {refused}; expected the same header. Undo the change and run the same "
            f"command again, which repeats the steps at no cost; or {runs.START_OVER}"
        )
    cost = f"repeats no released step: epsilon stays {before}"
    if more:
        cost = f"repeats {more} released steps: epsilon {before} becomes {after}"
    progress.say(f"continuing with {', '.join(changes)} {cost}")


def ledger_entry(
    mechanism: Mechanism,
    clipper: Clipper,
    step: int,
    released: Released,
    cohort: TrainingCohort | None = None,
) -> dict[str, Any]:
    """Return the ledger's line of a step that was released; a collective if a cohort is given.

    ``update`` is SHA-256 (16 hex) of the noisy gradients and of noisy counts of norms. These are
    releases already, so the digest reveals nothing. A replayed step must have the same one, or
    other code or another machine would release a second version of it under the same noise.
    """
    entry: dict[str, Any] = {"epsilon_rdp": mechanism.rdp_after(step + 1)}
    if any(p.device.type != "cpu" for p in clipper.parameters.values()):
        return entry  # a replay may round differently, and count a norm at its threshold otherwise
    digest = hashlib.sha256()
    for parameter in clipper.parameters.values():
        if parameter.grad is not None:
            digest.update(own_part(parameter.grad).contiguous().numpy().data)
    digest.update(array("d", released.fractions).tobytes())
    if cohort is not None and cohort.divided:
        digest = hashlib.sha256("".join(cohort.all_gather(digest.hexdigest()[:16])).encode())
    entry["update"] = digest.hexdigest()[:16]
    if released.thresholds:  # from the noisy counts of earlier steps: public
        entry["thresholds"] = [float(f"{c:.6g}") for c in released.thresholds]
    return entry
