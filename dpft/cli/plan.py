"""``dpft plan``: memory and time of a step, and the largest microbatch, before a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from dpft.cli.options import AsJson, Settings
from dpft.cli.output import print_table
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.overrides import check_budget
from dpft.config.schema import parse
from dpft.report.console import Console
from dpft.report.terminal import echo

if TYPE_CHECKING:
    from dpft.parallel.simulate import Cost
    from dpft.training.devices import Device
    from dpft.training.plan import Length, StepTime
    from dpft.training.planned_step import StepShape

_GIB = 2**30


def main(
    overrides: Settings = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Processes, one a device; default: ranks= of the run.")
    ] = None,
    on: Annotated[
        str, typer.Option(metavar="DEVICE", help="Its data sheet: a name or a YAML file.")
    ] = "h100-sxm",
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Records of a rank's microbatch; default: as optim says."),
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a record; default: the task's most.")
    ] = None,
    rank: Annotated[
        int, typer.Option(min=0, help="Which one is simulated: in a pipeline they differ.")
    ] = 0,
    memory: Annotated[
        float | None, typer.Option(min=0, help="GiB of one device; default: its data sheet's.")
    ] = None,
    largest: Annotated[
        bool, typer.Option("--largest", help="Find the largest microbatch that fits; slower.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Memory and time of a run's step, before the run: dpft plan model=gpt2-xl --ranks 8

    One step is simulated without weights, data or devices. Type clip=none for the same step without
    privacy, parallel=fsdp to shard the model over the ranks, --on NAME for another device.
    """
    check_budget(overrides or ())
    run = parse(compose(overrides or ()))
    ranks = ranks or run.ranks or 1
    if rank >= ranks:
        raise ConfigError(f"--rank is {rank} with {ranks} of them; expected 0 to {ranks - 1}")
    with Console(stderr=True).status("simulating a step"):
        from dpft.training import plan as plans
        from dpft.training.devices import device
        from dpft.training.planned_step import shape_of

        shape = shape_of(run, ranks, batch, length, rank)
        sheet = device(on)
        room = sheet.memory if memory is None else memory * _GIB
        auto = run.optim.microbatch_tokens == "auto" and batch is None
        fitting = plans.largest_of(run, shape, room) if largest or auto else None
        if auto:
            shape = replace(shape, batch=max(1, fitting or 0))
        cost, time, run_length = plans.plan(run, shape, sheet)
    name = f"{run.model.name} adapt={run.adapt.name} clip={run.clip.style}"
    if as_json:
        held = {key: value for key, value in asdict(cost).items() if key != "work"}
        content = {
            "run": name,
            "shape": asdict(shape),
            "cost": {**held, "peak": cost.peak},
            "time": {**asdict(time), "seconds": time.seconds},
            "length": None if run_length is None else asdict(run_length),
            "largest": fitting,
        }
        echo(json.dumps(content, indent=2))
        return
    which = f"s, rank {rank}" if ranks > 1 else ""
    echo(
        f"simulated: {name} parallel={shape.parallel.name}, {ranks} rank{which}, each "
        f"{shape.microbatches} x {shape.batch} records of {shape.length} tokens; "
        f"{cost.trained:,} of {cost.parameters:,} parameters trained"
    )
    print_table(["a rank", "value"], _rows(cost, time, run_length, shape, room), right=["value"])
    if fitting is not None:
        tokens = fitting * shape.length
        said = f"largest microbatch in nine tenths of the memory: {fitting} records"
        echo(f"{said} (optim.microbatch_tokens={tokens})" if fitting else f"{said}: none fits")
    for line in _assumptions(sheet, shape, run_length):
        echo(line)


def _rows(
    cost: Cost, time: StepTime, length: Length | None, shape: StepShape, room: float
) -> Iterator[list[str]]:
    def gib(number: float) -> str:
        return f"{number / _GIB:,.2f}"

    yield ["GiB between steps", gib(cost.held)]
    for phase, peak in cost.peaks.items():
        yield [f"GiB at most in {phase}", gib(peak)]
    if cost.checked is not None:
        yield ["GiB at most where rules are checked", gib(cost.checked)]
    yield ["GiB at most", gib(cost.peak)]
    yield [f"fits in {room / _GIB:g} GiB", "yes" if cost.peak <= room else "no"]
    if shape.ranks > 1:
        yield ["GiB sent in these", gib(sum(cost.sent.values()))]
    for name, seconds in (
        ("a microbatch", time.microbatch),
        ("noise", time.noise),
        ("the optimizer", time.optimizer),
        ("sending", time.sending),
    ):
        yield [f"ms of {name}", f"{1000 * seconds:,.2f}"]
    many = time.microbatches
    step = f"s of a step of {many:,} microbatch{'es' if many > 1 else ''}"
    yield [step, f"{time.seconds:,.2f}"]
    if length is not None:
        yield [f"hours of {length.steps:,} steps", f"{length.steps * time.seconds / 3600:,.2f}"]


def _assumptions(device: Device, shape: StepShape, length: Length | None) -> Iterator[str]:
    yield (
        f"assumed: {device.title}, {device.attained}; an operation takes its products, its bytes "
        f"or {device.overhead * 1e6:.1f} us, one after the other, and nothing is sent "
        f"meanwhile; every record has {shape.length} tokens; float32 products without TF32"
    )
    if shape.ranks > 1:
        link, what = device.link, "within a node"
        if shape.ranks > device.per_node:
            link, what = device.network, f"beyond {device.per_node} ranks a node"
        yield f"assumed: {link / 1e9:g} GB/s {what}"
    if shape.parallel.name == "pipeline":
        last = (shape.parallel.length or shape.ranks) - 1
        yield f"pipeline: other ranks hold other stages; see --rank 0 and --rank {last}"
    if length is None:
        yield (
            "the run's steps are unknown: type task.train_size=N, the number of training records"
        )
    yield "not counted: reading data, decoding, checkpoints, checked batches, host waits"
