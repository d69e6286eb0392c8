"""``dpft plan``: memory, time and money of a run, before it is paid for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

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
    from dpft.training.plan import RankCost, StepCost

_GIB, _MIB = 2**30, 2**20


def main(
    overrides: Settings = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Processes, one a device; default: ranks= of the run.")
    ] = None,
    on: Annotated[
        str, typer.Option(metavar="DEVICE", help="Its data sheet: a name, a YAML file, or cpu.")
    ] = "h100-sxm",
    price: Annotated[
        float | None, typer.Option(min=0, help="Of one device for an hour, in any currency.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Records of a rank's microbatch; default: as optim says."),
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a record; default: the task's most.")
    ] = None,
    microbatches: Annotated[
        int | None,
        typer.Option(min=1, help="Of a rank, to simulate; default: 1, or a pipeline's round."),
    ] = None,
    rank: Annotated[
        int, typer.Option(min=0, help="Which one is simulated: in a pipeline they differ.")
    ] = 0,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Recompute each block in the backward.")
    ] = False,
    memory: Annotated[
        float | None, typer.Option(min=0, help="GiB of one device; default: its data sheet's.")
    ] = None,
    largest: Annotated[
        bool, typer.Option("--largest", help="Find the largest microbatch that fits; slower.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Memory, time and cost of a run, before it is paid for: dpft plan model=gpt2-xl --ranks 8

    One step is simulated without weights, data or devices, and the same one without privacy. Type
    parallel=fsdp to shard the model over the ranks, --on NAME for another device.
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

        options: dict[str, Any] = {"checkpointing": checkpointing, "rank": rank}
        shape = shape_of(run, ranks, batch, length, microbatches, **options)
        sheet = device(on)
        room = sheet.memory if memory is None else memory * _GIB
        auto = run.optim.microbatch_tokens == "auto" and batch is None
        fitting = plans.largest_of(run, shape, room) if largest or auto else None
        if auto:
            shape = replace(shape, batch=max(1, fitting or 0))
        found = plans.plan(run, shape, sheet)
    name = f"{run.model.name} adapt={run.adapt.name} clip={run.clip.style}"
    if as_json:
        extra = {} if fitting is None else {"largest": fitting}
        echo(json.dumps({"run": name, **found.plain_dict(), **extra}, indent=2))
        return
    side = found.private or found.plain
    assert side is not None
    count = f"{side.cost.trained:,} of {side.cost.parameters:,}"
    which = f", rank {rank}" if ranks > 1 else ""
    echo(
        f"simulated: {name} parallel={shape.parallel.name}, {ranks} rank{'s' if ranks > 1 else ''}"
        f"{which}, each {shape.microbatches} x {shape.batch} records of {shape.length} tokens; "
        f"{count} parameters trained"
    )
    print_table(
        ["a rank", "private", "non-private", "ratio"],
        [*_memory(found, room), *_traffic(found), *_time(found, price)],
        right=["private", "non-private", "ratio"],
    )
    if fitting is not None:
        tokens = fitting * shape.length
        said = f"largest microbatch in nine tenths of the memory: {fitting} records"
        echo(f"{said} (optim.microbatch_tokens={tokens})" if fitting else f"{said}: none fits")
    for line in _assumptions(found):
        echo(line)


Of = Callable[["StepCost"], float | None]


def _row(plan: RankCost, label: str, of: Of, unit: float = 1.0, digits: int = 2) -> list[str]:
    values = [None if side is None else of(side) for side in (plan.private, plan.plain)]
    private, plain = values
    cells = ["" if x is None else f"{x / unit:,.{digits}f}" for x in values]
    return [label, *cells, f"{private / plain:.2f}" if private is not None and plain else ""]


def _memory(plan: RankCost, room: float) -> Iterator[list[str]]:
    from dpft.parallel.simulated_layouts import PHASES

    sides = [side for side in (plan.private, plan.plain) if side is not None]
    yield _row(plan, "GiB between steps", lambda side: side.cost.held, _GIB)
    for phase in PHASES:
        if any(phase in side.cost.peaks for side in sides):
            of: Of = lambda side, p=phase: side.cost.peaks[p]  # type: ignore[misc]  # noqa: E731
            yield _row(plan, f"GiB at most in {phase}", of, _GIB)
    yield _row(plan, "GiB at most where rules are checked", lambda side: side.cost.checked, _GIB)
    yield _row(plan, "GiB at most", lambda side: side.cost.peak, _GIB)
    fits = [
        "" if side is None else "yes" if side.cost.peak <= room else "no"
        for side in (plan.private, plan.plain)
    ]
    yield [f"fits in {room / _GIB:g} GiB", *fits, ""]


def _traffic(plan: RankCost) -> Iterator[list[str]]:
    from dpft.parallel.metering import KINDS

    sides = [side for side in (plan.private, plan.plain) if side is not None]
    for kind in KINDS:
        if any(kind in side.cost.sent for side in sides):
            of: Of = lambda side, k=kind: side.cost.sent.get(k, 0)  # type: ignore[misc]  # noqa: E731
            yield _row(plan, f"MiB sent by {kind}", of, _MIB)
    if plan.shape.ranks > 1:
        yield _row(plan, "MiB sent in these", lambda side: sum(side.cost.sent.values()), _MIB)


def _time(plan: RankCost, price: float | None) -> Iterator[list[str]]:
    from dpft.training.estimate import NOISE_BYTES

    yield _row(plan, "% of products outside half precision", lambda side: 100 * side.outside)
    yield _row(plan, "GiB of noise drawn", lambda side: side.cost.noise * NOISE_BYTES, _GIB)
    yield _row(plan, "ms of a microbatch", lambda side: side.time.microbatch, 1e-3)
    yield _row(plan, "ms of noise", lambda side: side.time.noise, 1e-3)
    yield _row(plan, "ms of the optimizer", lambda side: side.time.optimizer, 1e-3)
    yield _row(plan, "ms of sending", lambda side: side.time.sending, 1e-3)
    side = plan.private or plan.plain
    assert side is not None
    many = side.time.microbatches
    step = f"s of a step of {many:,} microbatch{'es' if many > 1 else ''}"
    yield _row(plan, step, lambda side: side.time.seconds)
    if plan.length is not None:
        yield _row(plan, f"hours of {plan.length.steps:,} steps", plan.hours)
        if price is not None:
            devices = plan.shape.ranks
            total: Of = lambda side: (plan.hours(side) or 0.0) * devices * price  # noqa: E731
            yield _row(plan, f"cost of {devices} at {price:g} an hour", total)


def _assumptions(plan: RankCost) -> Iterator[str]:
    device, shape = plan.device, plan.shape
    joined = "and" if device.serial else "or"
    yield (
        f"assumed: {device.title}, {device.attained}; an operation takes its products, its bytes "
        f"{joined} {device.overhead * 1e6:.1f} us, one after the other, and nothing is sent "
        f"meanwhile; every record has {shape.length} tokens; float32 products without TF32"
    )
    if shape.ranks > 1:
        link, what = device.link, "within a node"
        if shape.ranks > device.per_node:
            link, what = device.network, f"beyond {device.per_node} ranks a node"
        yield f"assumed: {link / 1e9:g} GB/s {what}"
    if shape.parallel.name == "pipeline":
        yield (
            "pipeline: other ranks hold other stages; see --rank 0 and --rank "
            f"{(shape.parallel.length or shape.ranks) - 1}. There is none without privacy"
        )
    if plan.length is None:
        yield (
            "the run's steps are unknown: type task.train_size=N, the number of training records"
        )
    yield "not counted: reading data, decoding, checkpoints, checked batches, host waits"
