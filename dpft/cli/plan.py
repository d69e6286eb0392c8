"""``dpft plan``: memory and time of a step, and the largest microbatch, before a run."""

from typing import Annotated

import typer

from dpft.cli.options import Settings
from dpft.config.compose import compose
from dpft.config.overrides import check_budget
from dpft.config.schema import parse
from dpft.report.console import Console
from dpft.report.terminal import echo

_GIB = 2**30


def main(
    overrides: Settings = None,
    on: Annotated[
        str, typer.Option(metavar="DEVICE", help="Data sheet of the device: a name or a YAML file.")
    ] = "h100-sxm",
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a record. Default: the task's maximum.")
    ] = None,
    largest: Annotated[
        bool, typer.Option("--largest", help="Find the largest microbatch that fits; slower.")
    ] = False,
) -> None:
    """Memory and time of a step, before the run: dpft plan model=gpt2-xl --on h100-sxm

    Simulates one step on one device, without weights or data. Type clip=none for the step without
    privacy.
    """
    check_budget(overrides or ())
    run = parse(compose(overrides or ()))
    with Console(stderr=True).status("simulating a step"):
        from dpft.plan import estimate as plans
        from dpft.plan.estimate import shape_of
        from dpft.report.comparison import print_pairs

        shape = shape_of(run, length=length)
        sheet = plans.device(on)
        fitting = plans.largest_of(run, shape, sheet.memory) if largest else None
        cost, time, run_length = plans.plan(run, shape, sheet)
    name = f"{run.model.name} adapt={run.adapt.name} clip={run.clip.style}"
    echo(
        f"simulated: {name}, microbatches of {shape.batch} records of {shape.length} tokens; "
        f"{cost.trained:,} of {cost.parameters:,} parameters trained"
    )
    gib = {"between steps": cost.held}
    gib |= {f"at most in {phase}": peak for phase, peak in cost.peaks.items()}
    gib |= {} if cost.checked is None else {"at most where rules are checked": cost.checked}
    gib["at most"] = cost.peak
    rows = [(f"GiB {where}", f"{size / _GIB:,.2f}", "") for where, size in gib.items()]
    fits = "yes" if cost.peak <= sheet.memory else "no"
    rows.append((f"fits in {sheet.memory / _GIB:g} GiB", fits, ""))
    for part in ("microbatch", "host", "optimizer"):
        rows.append((f"ms of {part}", f"{1000 * getattr(time, part):,.2f}", ""))
    rows.append((f"s of a step, microbatches: {time.microbatches:,}", f"{time.seconds:,.2f}", ""))
    if run_length is not None:
        rows.append(("records a second", f"{run_length[1] / time.seconds:,.0f}", ""))
        hours = f"{run_length[0] * time.seconds / 3600:,.2f}"
        rows.append((f"hours of {run_length[0]:,} steps", hours, ""))
    print_pairs("a step", rows)
    if fitting is not None:
        tokens = fitting * shape.length
        text = f"largest microbatch in nine tenths of the memory: {fitting} records"
        echo(f"{text} (optim.microbatch_tokens={tokens})" if fitting else f"{text}: none fits")
    echo(
        f"assumed: {sheet.title}, {sheet.attained}; an operation takes its products, its bytes "
        f"or {sheet.overhead * 1e6:.1f} us, one after the other, as an eager step does; "
        f"a record has {shape.length} tokens; "
        "float32 products without TF32; the host's share is that of another machine"
    )
    if run_length is None:
        echo("the run's steps are unknown: type task.train_size=N, the number of training records")
    echo("not counted: reading data, noise, decoding, checkpoints, the time of checked batches")
