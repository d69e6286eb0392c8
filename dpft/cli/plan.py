"""``dpft plan``: memory and time of a step, and the largest microbatch, before a run."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from dpft.cli.options import AsJson, Settings
from dpft.cli.output import print_table
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
    batch: Annotated[
        int | None, typer.Option(min=1, help="Records of a microbatch. Default: from optim.")
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a record. Default: the task's maximum.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(min=0, help="GiB of the device. Default: from its data sheet.")
    ] = None,
    largest: Annotated[
        bool, typer.Option("--largest", help="Find the largest microbatch that fits; slower.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Memory and time of a step, before the run: dpft plan model=gpt2-xl --on h100-sxm

    Simulates one step on one device, without weights or data. Type clip=none for the step without
    privacy.
    """
    check_budget(overrides or ())
    run = parse(compose(overrides or ()))
    with Console(stderr=True).status("simulating a step"):
        from dpft.plan import estimate as plans
        from dpft.plan.step import shape_of

        shape = shape_of(run, batch, length)
        sheet = plans.device(on)
        room = sheet.memory if memory is None else memory * _GIB
        fitting = plans.largest_of(run, shape, room) if largest else None
        cost, time, run_length = plans.plan(run, shape, sheet)
    name = f"{run.model.name} adapt={run.adapt.name} clip={run.clip.style}"
    if as_json:
        held = {key: value for key, value in asdict(cost).items() if key != "work"}
        content = {
            "run": name,
            "shape": asdict(shape),
            "cost": {**held, "peak": cost.peak},
            "time": {**asdict(time), "seconds": time.seconds},
            "length": run_length and {"steps": run_length[0], "records": run_length[1]},
            "largest": fitting,
        }
        echo(json.dumps(content, indent=2))
        return
    echo(
        f"simulated: {name}, microbatches of {shape.batch} records of {shape.length} tokens; "
        f"{cost.trained:,} of {cost.parameters:,} parameters trained"
    )
    gib = {"between steps": cost.held}
    gib |= {f"at most in {phase}": peak for phase, peak in cost.peaks.items()}
    gib |= {} if cost.checked is None else {"at most where rules are checked": cost.checked}
    gib["at most"] = cost.peak
    rows = [[f"GiB {where}", f"{size / _GIB:,.2f}"] for where, size in gib.items()]
    rows.append([f"fits in {room / _GIB:g} GiB", "yes" if cost.peak <= room else "no"])
    for part in ("microbatch", "host", "optimizer"):
        rows.append([f"ms of {part}", f"{1000 * getattr(time, part):,.2f}"])
    rows.append([f"s of a step, microbatches: {time.microbatches:,}", f"{time.seconds:,.2f}"])
    if run_length is not None:
        rows.append(["records a second", f"{run_length[1] / time.seconds:,.0f}"])
        hours = f"{run_length[0] * time.seconds / 3600:,.2f}"
        rows.append([f"hours of {run_length[0]:,} steps", hours])
    print_table(["a step", "value"], rows, right=["value"])
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
