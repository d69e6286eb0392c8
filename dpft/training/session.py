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
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dpft import runs
from dpft.config.errors import NO_STEP, ConfigError, DivergedError, ModelError
from dpft.models.load import LoadedModel
from dpft.parallel.cohort import TrainingCohort, own_part, together
from dpft.parallel.layouts import handled_by
from dpft.parallel.parts import WEIGHTS, put_together, taken_apart
from dpft.privacy import Clipper, Mechanism
from dpft.privacy.checks import Untouched, written
from dpft.privacy.noise import Released
from dpft.privacy.rounding import up
from dpft.runs.atomic import Closing
from dpft.runs.environment import explained
from dpft.runs.identity import differences
from dpft.tasks.objectives.evaluation import not_finite_on_a_blank
from dpft.training.executors import Programs
from dpft.training.held_out import Evaluations
from dpft.training.loop import Phase, train
from dpft.training.setup import Prepared, compiles, load_adapted, make_optimizer
from dpft.training.statistics import StepStatistics

if TYPE_CHECKING:
    from dpft.training.trackers import Tracking

_AUDIT = "audit"  # the folder under private/
_MORE_ROOM = (
    "free some memory, or take a machine with more, and run the same command again, which "
    "continues this run. A smaller optim.microbatch_tokens, or model.checkpointing=true, needs "
    "less memory and starts another run, which costs privacy again"
)


class Session(Closing):
    """Training from the newest checkpoint on.

    Where the ledger has several stretches, ``prepared`` gets the latest one's key, units and
    mechanism.

    Attributes:
        seconds: that the steps took, those before the checkpoint included.
        evaluation: the record's section of evaluations during the training; empty without any.

    Raises:
        ConfigError, LedgerMismatchError: the folder's run is not this one, or repeated steps
            would exceed its budget.
    """

    def __init__(self, prepared: Prepared) -> None:
        parts, header, directory = prepared.parts, prepared.header, prepared.directory
        cohort, model, private = prepared.cohort, parts.loaded.model, parts.mechanism.private
        self.prepared, self.seconds, self.evaluation = prepared, 0.0, dict[str, Any]()
        self._ledger = None
        if directory is not None and private:
            self._ledger = runs.Ledger(directory.ledger, header)
        # The parameters of a checkpoint, also those of other stages of a pipeline.
        named, reparametrisation = model.named_parameters(), parts.loaded.reparametrisation
        self._moved: Mapping[str, nn.Parameter] = {n: p for n, p in named if p.requires_grad}
        if reparametrisation is not None:
            self._moved = reparametrisation.moved()
        elif parts.pipeline is None:
            self._moved = parts.clipper.parameters
        self._optimizer = make_optimizer(prepared.run.optim, self._moved.values())
        self._untouched = None
        if private:
            trained = [p for p in model.parameters() if p.requires_grad]
            moved = {id(p) for p in (*trained, *self._moved.values())}
            self._untouched = Untouched(model, moved)
        self._saved_at = time.monotonic()
        own = header["compute"].get("plugins", {})
        cohort.barrier(word=f"{header['data']} {header['model']} {own}")
        saved = runs.checkpoint.load(directory, cohort)
        self._done = self._saved = 0 if saved is None else saved.step
        with together(cohort):
            if directory is not None and saved is not None:
                self._check(directory, saved)
            if self._ledger is not None:
                go_on(prepared, self._ledger, self._done)
        if saved is not None:
            rest = saved.state["optimizer"]
            put_together(self._moved, self._optimizer, saved.written, saved.fill, rest)
            parts.clipper.policy.restore(saved.state)
        stretch = cohort.broadcast_object(self._ledger.stretch if self._ledger else None)
        if stretch is not None and stretch.position:  # not the ledger's first stretch
            prepared.key = stretch.key(prepared.key)
            prepared.units = prepared.units.under(prepared.key)
            parts.mechanism = replace(parts.mechanism, repeated=stretch.repeated)

    def train(
        self,
        tracker: Tracking | None = None,
        lap: Callable[[Phase], None] = lambda phase: None,
    ) -> None:
        """Run the steps that are left; each is in the ledger before the weights move."""
        prepared, parts, cohort = self.prepared, self.prepared.parts, self.prepared.cohort
        run, directory = prepared.run, prepared.directory
        mechanism, clipper, model = parts.mechanism, parts.clipper, parts.loaded.model
        start, names = self._done, [group.name for group in clipper.groups]
        doing = f"training with optim.microbatch_tokens={run.optim.tokens}"
        with ExitStack() as stack:
            stack.enter_context(explained(doing, _MORE_ROOM))
            stack.enter_context(self._noted())
            show = stack.enter_context(prepared.progress.training(start, mechanism))
            metrics = norms = evaluations = programs = None
            if directory is not None:
                metrics = stack.enter_context(runs.MetricsLog(directory.metrics, start))
                if run.record_norms is not None:
                    file = directory.private / runs.NORMS
                    norms = stack.enter_context(runs.MetricsLog(file, start))
            if tracker is not None:
                tracker.begin(start)
            stop = Stop()
            stop.usual = stack.enter_context(handled_by(stop.receive))
            if prepared.held_out:
                evaluations = stack.enter_context(Evaluations(prepared, start))

            def watched(step: int) -> bool:
                return run.record_norms is not None and step % run.record_norms == 0

            def after_step(step: int, statistics: StepStatistics) -> None:
                self.seconds += statistics.seconds
                summary = statistics.summary(cohort)
                recorded = statistics.norms_of_all(cohort) if watched(step) else []
                evaluated = {} if evaluations is None else evaluations.ask(step + 1)
                rate = self._optimizer.param_groups[0]["lr"]
                if metrics is not None:
                    # In the ledger.
                    place = {"position": step + mechanism.repeated} if mechanism.repeated else {}
                    metrics.append({"step": step, "lr": rate, **summary, **place})
                if norms is not None and recorded:
                    both = statistics.signal, statistics.noise
                    norms.append(runs.norms_of(step, names, recorded, *both))
                if tracker is not None:
                    thresholds = statistics.released.thresholds
                    found = tracker.figures(mechanism, names, step, rate, thresholds, summary)
                    tracker.log(step + 1, found | evaluated)
                show(step, summary)
                self._done = step + 1
                # After 1, 2, 4, 8 steps and so on, and after the last; a rank that has only a part
                # of the model waits for `whole_model`.
                doubled = step & self._done == 0 or self._done == mechanism.steps
                if doubled and not cohort.divided:
                    with clipper.paused():
                        self._check_answers(model)
                self._save_if_due(stop)

            evaluated = {} if evaluations is None else evaluations.ask(start)
            if evaluated and tracker is not None:
                tracker.log(start, evaluated)
            if compiles(run, model.device):
                programs = Programs(prepared.units, model, clipper, run.precision)
            train(
                model=model,
                data=prepared.units,
                clipper=clipper,
                mechanism=mechanism,
                optimizer=self._optimizer,
                settings=run.optim,
                key=prepared.key,
                start=start,
                reparametrisation=parts.loaded.reparametrisation,
                audit=prepared.auditor,
                cohort=cohort,
                pipeline=parts.pipeline,
                programs=programs,
                spend=self._spend,
                after_step=after_step,
                watched=watched,
                lap=lap,
            )
            if start < mechanism.steps:
                self._save(mechanism.steps)
            stop.if_any(cohort.agree(stop.received, ""))
        if evaluations is not None:
            self.evaluation = evaluations.section()
        if self._ledger and self._ledger.steps_spent != mechanism.releases:
            raise runs.LedgerError(
                f"{self._ledger.path} counts {self._ledger.steps_spent} releases, of which "
                f"{mechanism.releases} are accounted for; expected as many. Please report "
                "this, and rely on no epsilon of this run"
            )

    def close(self) -> None:
        """Take the hooks off the model and close the ledger."""
        self.prepared.parts.clipper.close()
        if self._ledger is not None:
            self._ledger.close()

    @torch.no_grad()
    def whole_model(self) -> LoadedModel:
        """Return the trained model in one piece, on every rank; a collective.

        One parameter at a time, so that a rank holds no more than its share and the whole model.
        """
        prepared, parts, cohort = self.prepared, self.prepared.parts, self.prepared.cohort
        if not cohort.divided:
            return parts.loaded
        first, trained = cohort.rank == 0, dict(self._moved)
        device = next(iter(parts.clipper.parameters.values())).device
        loaded = load_adapted(prepared.run, prepared.task, cohort)
        loaded.model.to(device).train()  # type: ignore[arg-type]
        for name, parameter in loaded.model.named_parameters():
            if name in trained:
                whole = cohort.whole(trained.pop(name).detach(), name)
                if cohort.sharded:  # every rank has put it together
                    parameter.copy_(whole)
                else:
                    cohort.broadcast(parameter, whole if first else None)
            elif cohort.sharded:  # else each rank has read its own
                cohort.broadcast(parameter, parameter if first else None)
        assert not trained, f"the model has no place for {list(trained)}"
        for buffer in loaded.model.buffers():
            cohort.broadcast(buffer, buffer if first else None)
        if parts.mechanism.steps:
            self._check_answers(loaded.model)
        return loaded

    def _check(self, directory: runs.RunDirectory, saved: runs.Checkpoint) -> None:
        """Check that the checkpoint to continue from is of this run; take what is not weights."""
        header, auditor = self.prepared.header, self.prepared.auditor
        held = {n.removeprefix(WEIGHTS) for n in saved.written if n.startswith(WEIGHTS)}
        of = {
            "names of trained parameters": (held, set(self._moved)),
            "data": (saved.state["data"], header["data"]),
            "model": (saved.state["model"], header["model"]),
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
        steps = self.prepared.parts.mechanism.steps
        self.prepared.progress.say(f"continuing {directory.path} at step {saved.step} of {steps}")

    def _check_answers(self, model: Any) -> None:
        """Raise DivergedError where a padding example, which is no record, has no finite loss.

        The weights are finite then, but every later record would be left out.
        """
        if not_finite_on_a_blank(self.prepared.objective, model) is not None:
            raise DivergedError(
                f"after step {self._done} the model has no finite loss for an empty record, so it "
                "learns nothing. Type a smaller optim.lr, which is another run; what this one "
                "spent stays in its ledger"
            )

    def _spend(self, step: int, released: Released) -> None:
        parts, cohort = self.prepared.parts, self.prepared.cohort
        if not parts.mechanism.private:
            return
        entry = ledger_entry(parts.mechanism, parts.clipper, step, released, cohort)
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
        done, run, cohort = self._done, self.prepared.run, self.prepared.cohort
        # The first rank's clock decides: ranks save together, and clocks differ.
        minutes, since = run.checkpoint_minutes, time.monotonic() - self._saved_at
        late = cohort.rank == 0 and minutes is not None and since >= 60 * minutes
        due, *stopped = cohort.agree([late, *stop.received], "")
        due = due or done % run.checkpoint_every == 0
        if (due and done < self.prepared.parts.mechanism.steps) or any(stopped):
            self._save(done)
        stop.if_any(stopped)

    def _save(self, step: int) -> None:
        """Write a checkpoint of the same form for every layout; each rank writes its part."""
        prepared, directory, cohort = self.prepared, self.prepared.directory, self.prepared.cohort
        touched = [] if self._untouched is None else self._untouched.changed()
        with together(cohort):
            if touched:
                raise ModelError(written(touched, prepared.parts.loaded.model))
        tensors, rest = taken_apart(self._moved, self._optimizer)
        state = {
            "optimizer": rest,
            "seconds": self.seconds,
            "data": prepared.header["data"],
            "model": prepared.header["model"],
            **prepared.parts.clipper.policy.state(),
        }
        if prepared.auditor is not None and directory is not None:
            # Not in the checkpoint, which the guarantee covers: the scores are noiseless.
            runs.save_private_state(directory, _AUDIT, step, prepared.auditor.state())
        runs.checkpoint.save(directory, step, tensors, state, cohort)
        self._saved, self._saved_at = step, time.monotonic()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Add to an interrupt a note of what is saved."""
        try:
            yield
        except KeyboardInterrupt as error:
            note = "no step is saved: those that were taken are repeated and count once"
            if self._saved:
                note = f"step {self._saved} of {self.prepared.parts.mechanism.steps} is saved"
            error.add_note(note if self._done else NO_STEP)
            raise


class Stop:
    """Defers the first Ctrl-C or SIGTERM to the end of a step, where all ranks save and stop.

    A second Ctrl-C ends the process at once, which loses no more than a kill does. A second SIGTERM
    is ignored: a scheduler signals every process, and torchrun signals its ranks again.

    Attributes:
        usual: the handlers in whose place `receive` is called, by signal.
        received: of Ctrl-C and of SIGTERM, whether it was received, for ranks to agree on.
    """

    def __init__(self) -> None:
        self.usual: Mapping[int, Any] = {}
        self.received = [False, False]

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if not any(self.received):
            self.received = [number == one for one in _SIGNALS]
        elif number == signal.SIGINT or self.received[0]:
            self.if_any([number == one for one in _SIGNALS])

    def if_any(self, received: Sequence[bool]) -> None:
        """Raise the usual handler's KeyboardInterrupt if any rank received a signal."""
        for number, was in zip(_SIGNALS, received, strict=True):
            if was:
                if usual := self.usual.get(number):
                    usual(number, None)
                raise KeyboardInterrupt


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def go_on(prepared: Prepared, ledger: runs.Ledger, start: int) -> None:
    """Set where the ledger continues, and report what repeated steps cost before their release.

    Raises:
        LedgerMismatchError: steps would count again in a run with a target epsilon, in one that
            took all of its steps, or in an audited one.
    """
    mechanism, was = prepared.parts.mechanism, ledger.stretch
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
    made, refused = runs.made_at_the_end(ledger.path.parent), None
    if prepared.run.audit.active:
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
    prepared.progress.say(f"continuing with {', '.join(changes)} {cost}")


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
