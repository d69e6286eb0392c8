"""``dpft plan``: memory of a rank and bytes it sends, before a run is paid for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpft.cli.options import AsJson, Settings
from dpft.cli.output import print_table
from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.report.console import Console
from dpft.report.terminal import echo

if TYPE_CHECKING:
    from dpft.parallel.simulate import Cost
    from dpft.training.plan import Plan

_GIB, _MIB = 2**30, 2**20


def main(
    overrides: Settings = None,
    ranks: Annotated[int, typer.Option(min=1, help="Processes, one a device.")] = 1,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Records of a rank's microbatch; default: as optim says."),
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a record; default: the task's most.")
    ] = None,
    microbatches: Annotated[int, typer.Option(min=1, help="Of a rank in a step.")] = 1,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Recompute each block in the backward.")
    ] = False,
    memory: Annotated[float, typer.Option(min=0, help="GiB of one device.")] = 80.0,
    as_json: AsJson = False,
) -> None:
    """Memory and traffic of a rank, before a run is paid for: dpft plan model=gpt2-xl --ranks 8

    One step is simulated without weights, data or devices, and the same one without privacy. Type
    parallel=fsdp to shard the model over the ranks.
    """
    run = parse(compose(overrides or ()))
    with Console(stderr=True).status("simulating a step"):
        from dpft.training.plan import plan, shape_of

        options: dict[str, Any] = {"microbatches": microbatches, "checkpointing": checkpointing}
        found = plan(run, shape_of(run, ranks, batch, length, **options))
    name = f"{run.model.name} adapt={run.adapt.name} clip={run.clip.style}"
    if as_json:
        echo(json.dumps({"run": name, **asdict(found)}, indent=2))
        return
    shape = found.shape
    echo(
        f"simulated: {name} parallel={shape.layout}, {ranks} rank{'s' if ranks > 1 else ''}, each "
        f"{shape.microbatches} x {shape.batch} records of {shape.length} tokens; "
        f"{found.plain.trained:,} of {found.plain.parameters:,} parameters trained"
    )
    print_table(
        ["a rank", "private", "non-private", "ratio"],
        list(_rows(found, memory)),
        right=["private", "non-private", "ratio"],
    )


def _rows(plan: Plan, memory: float) -> Iterator[list[str]]:
    from dpft.parallel.simulate import KINDS, PHASES, sent

    costs = (plan.private, plan.plain)

    def row(label: str, unit: int, of: Callable[[Cost], int | None]) -> list[str]:
        private, plain = (None if cost is None else of(cost) for cost in costs)
        cells = ["" if x is None else f"{x / unit:,.2f}" for x in (private, plain)]
        return [label, *cells, f"{private / plain:.2f}" if private is not None and plain else ""]

    def bytes_sent(cost: Cost) -> dict[str, int]:
        return sent(cost.messages, plan.shape.ranks)

    yield row("GiB between steps", _GIB, lambda cost: cost.held)
    for phase in PHASES:
        yield row(f"GiB at most in {phase}", _GIB, lambda cost, p=phase: cost.peaks[p])  # type: ignore[misc]
    yield row("GiB at most where rules are checked", _GIB, lambda cost: cost.checked)
    yield row("GiB at most", _GIB, lambda cost: cost.peak)
    yield [f"fits in {memory:g} GiB", *(_fits(cost, memory) for cost in costs), ""]
    for kind in KINDS:
        if any(cost is not None and kind in bytes_sent(cost) for cost in costs):
            yield row(f"MiB sent by {kind}", _MIB, lambda cost, k=kind: bytes_sent(cost).get(k, 0))  # type: ignore[misc]
    if plan.shape.ranks > 1:
        yield row("MiB sent in a step", _MIB, lambda cost: sum(bytes_sent(cost).values()))


def _fits(cost: Cost | None, memory: float) -> str:
    return "" if cost is None else "yes" if cost.peak <= memory * _GIB else "no"
