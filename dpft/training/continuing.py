"""Go on from a checkpoint: repeat released steps bit for bit, or release new ones in their place.

A run that is killed has released steps that its last checkpoint does not hold. On the same devices
they are replayed: same batches, same noise, same sums, so that nothing new is released. On other
devices, threads or ranks sums are rounded differently. The same noise on them would release, by
subtraction, the difference of two sums without noise. So the run goes on at the end of the ledger:
the repeated steps have batches and noise of their own and count again.

Batches are drawn anew too, and not only the noise. Two releases on one Poisson sample share the
event that a record was drawn: they are one subsampled mechanism of less noise, which costs more
than two whose samples are independent, and which no count of steps describes.
"""

from __future__ import annotations

from dataclasses import replace

from dpft import runs
from dpft.config.schema import Run
from dpft.privacy import Mechanism
from dpft.privacy.rounding import up
from dpft.runs.identity import differences
from dpft.runs.ledger import Stretch
from dpft.training.progress import Progress
from dpft.training.setup import Prepared


def go_on(
    run: Run,
    mechanism: Mechanism,
    directory: runs.RunDirectory,
    ledger: runs.Ledger,
    start: int,
    progress: Progress,
) -> None:
    """Set where the ledger goes on, and report what repeated steps cost before they are released.

    Args:
        run: the settings.
        mechanism: of the whole run, without repeated steps.
        directory: the run's folder.
        ledger: of the run.
        start: steps that the newest good checkpoint has behind it.
        progress: shows the cost.

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
    made = runs.made_at_the_end(directory.path)
    refused = None
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
            f"checkpoint of step {start}. The run would go on under another header (old -> new):\n"
            f"  {listed}\nSo {more} steps would count again: epsilon {before} would become "
            f"{after}. {refused}; expected the same header. Undo the change and run the same "
            f"command again, which repeats the steps at no cost (stopped by Ctrl-C it saves a "
            f"checkpoint, from which any devices go on at no cost); or {runs.START_OVER}"
        )
    said = f"repeats {more} released steps: epsilon {before} becomes {after}"
    if not more:
        said = f"repeats no released step: epsilon stays {before}"
    progress.say(f"going on with {', '.join(changes)} {said}")
    runs.checkpoint.drop_ahead(directory, start)


def in_stretch(prepared: Prepared, stretch: Stretch) -> Prepared:
    """Return what a run trains with in a stretch of its ledger: key, units and accounting.

    Args:
        prepared: for the first stretch.
        stretch: of the next step.
    """
    key = stretch.key(prepared.key)
    mechanism = replace(prepared.parts.mechanism, repeated=stretch.repeated)
    return replace(
        prepared,
        key=key,
        units=prepared.units.under(key),
        parts=replace(prepared.parts, mechanism=mechanism),
    )
