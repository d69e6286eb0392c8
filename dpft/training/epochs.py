"""Going on where steps cannot be repeated bit for bit: a noise epoch, whose steps are charged.

A run that is killed has released steps that its last checkpoint does not hold. Where nothing
changed they are replayed: same batches, same noise, same sums, so that nothing new is released.
With other devices, threads or ranks, sums are rounded otherwise. The same noise on them would
release, by subtraction, the difference of two sums without noise. So the steps from the checkpoint
on are drawn anew, from a key of their own, and whoever accounts for the run counts those on file
once more. That costs privacy and is done only if the command says so (``replay=charge``).

Batches are drawn anew too, and not only the noise. Two releases on one Poisson sample share the
event that a record was drawn: they are one subsampled mechanism of less noise, which costs more
than two whose samples are independent, and which no count of steps describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpft import runs
from dpft.config.schema import Run
from dpft.privacy import Mechanism, keys
from dpft.privacy.rounding import up
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
    """Begin a noise epoch if the steps from ``start`` on cannot be replayed.

    Args:
        run: the settings, which say whether steps may be released once more.
        mechanism: of the whole run, without repeated steps.
        directory: the run's folder.
        ledger: of the run.
        start: steps that the newest good checkpoint has behind it.
        progress: is told what it costs, before anything is released.

    Raises:
        LedgerMismatchError: steps would be released once more without leave, the run was finished,
            or it is audited.
    """
    repeated = ledger.repeats(start)
    if repeated is None or start == mechanism.steps:  # nothing is left to be released
        return
    changes = ledger.changes or [f"checkpoint: {ledger.further[-1].start} -> {start}"]
    told = f"{ledger.path} counts {ledger.steps_spent} releases"
    listed = "\n  ".join(changes)
    undo = f"Undo the change and run the same command again, or {runs.START_OVER}"
    if run.audit.active:
        raise runs.LedgerMismatchError(
            f"{told}; the audited run would go on under another header (old -> new):\n  {listed}\n"
            f"Expected the same: the canaries' scores are of all steps in a row. {undo}"
        )
    made = runs.made_at_the_end(directory.path)
    if made is not None and repeated:
        raise runs.LedgerMismatchError(
            f"{told}, and {made} is there: all steps were taken. To make again what is damaged, "
            f"{repeated} of them must be replayed, which cannot be done under another header (old "
            f"-> new):\n  {listed}\nExpected the same. {undo}"
        )
    before, after = (
        up(replace(mechanism, repeated=ledger.repeated + more).epsilon_after(mechanism.steps))
        for more in (0, repeated)
    )
    price = f"epsilon {before} becomes {after}"
    if repeated and run.replay != "charge":
        raise runs.LedgerMismatchError(
            f"{told}, {repeated} of them behind the checkpoint that the run goes on from, step "
            f"{start}, under another header (old -> new):\n  {listed}\nExpected the same, to "
            f"repeat these steps bit for bit. Undo the change and run the same command again; or "
            f"type replay=charge, and they are drawn anew and count twice: {price}; or "
            f"{runs.START_OVER}"
        )
    where = ", ".join(changes)
    if repeated:
        progress.say(f"going on with {where} repeats {repeated} released steps: {price}")
    else:
        progress.say(f"going on with {where} repeats no released step: epsilon stays {before}")
    # What tells of the steps to be repeated goes first: ahead of the ledger it would tell of loss.
    runs.checkpoint.drop_ahead(directory, start)
    runs.forget_steps(directory.path, start)
    spent = mechanism.rdp_after(ledger.steps_spent)
    ledger.begin_epoch(start, charged=repeated, epsilon_rdp=spent)


def in_epoch(prepared: Prepared, further: Sequence[runs.Epoch]) -> Prepared:
    """What a run trains with in its latest noise epoch: key, units and accounting.

    Args:
        prepared: for the first epoch.
        further: the epochs behind it.
    """
    if not further:
        return prepared
    key = keys.of_epoch(prepared.key, [epoch.statement for epoch in further])
    mechanism = replace(prepared.parts.mechanism, repeated=sum(epoch.repeated for epoch in further))
    return replace(
        prepared,
        key=key,
        units=prepared.units.under(key),
        parts=replace(prepared.parts, mechanism=mechanism),
    )
