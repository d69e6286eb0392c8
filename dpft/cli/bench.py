"""``dpft bench``: time and memory of clipping styles and peers against non-private training."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dpft.cli.output import progress_bar
from dpft.config.errors import ConfigError
from dpft.report.terminal import echo
from dpft.reproduce.bench import report
from dpft.reproduce.bench.catalog import (
    DEFAULT_OUT,
    DEFAULT_ROUNDS,
    DEFAULT_STYLES,
    BenchSettings,
    require_peers,
)
from dpft.reproduce.bench.documents import summarise
from dpft.reproduce.bench.measure import (
    BenchError,
    Progress,
    ResultLog,
    WorkerProcess,
    largest_batches,
    measure,
    measurement_key,
    run_job,
)
from dpft.runs.atomic import write_atomic
from dpft.runs.environment import usable_cores


def main(
    model: Annotated[
        str,
        typer.Option(
            help="tiny, gpt2, gpt2-medium, -large, -xl, smollm2-135m, roberta-base, "
            "roberta-base-mlm, vit-small, vit-base or wrn16-4; random weights."
        ),
    ] = "tiny",
    batch: Annotated[int | None, typer.Option(help="Records per step, B.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens per record, T.")] = None,
    styles: Annotated[
        str, typer.Option(help="Clipping styles, with commas; uniform:6 for six groups; all.")
    ] = DEFAULT_STYLES,
    peers: Annotated[
        str, typer.Option(help="opacus, opacus-ghost; -linear swaps Conv1D for Linear first.")
    ] = "",
    rounds: Annotated[
        int, typer.Option(help="Fresh processes per style, interleaved.")
    ] = DEFAULT_ROUNDS,
    steps: Annotated[int | None, typer.Option(help="Timed steps per process.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Of each process; default: OMP_NUM_THREADS, or all cores.")
    ] = None,
    untied: Annotated[bool, typer.Option("--untied", help="Head and embedding apart.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16 (autocast) or float64.")
    ] = "float32",
    time_only: Annotated[
        bool, typer.Option("--time-only", help="No memory: a third of the time on a CPU.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = DEFAULT_OUT,
    name: Annotated[str | None, typer.Option(help="Their file name, without suffix.")] = None,
    largest_batch: Annotated[
        bool, typer.Option("--largest-batch", help="Search for it instead of timing (CUDA).")
    ] = False,
    memory: Annotated[
        float | None, typer.Option(help="GiB of the GPU that a largest batch may take.")
    ] = None,
) -> None:
    """Time and memory of clipping, against non-private training and peers: dpft bench --model gpt2

    Writes JSON, a Markdown table and a plot; the same command continues where it was stopped.
    """
    if memory is not None and not largest_batch:
        raise ConfigError(
            f"--memory {memory:g} limits what a largest batch may take: type --largest-batch too, "
            "or leave it out"
        )
    given = os.environ.get("OMP_NUM_THREADS", "")
    usual = int(given) if given.isdecimal() and int(given) > 0 else usable_cores() or 1
    settings = BenchSettings.make(
        model=model,
        batch=batch,
        length=length,
        styles=styles,
        peers=peers,
        rounds=rounds,
        steps=steps,
        threads=usual if threads is None else threads,
        untied=untied,
        time_only=time_only,
        memory=memory,
        device=device,
        dtype=dtype,
        out=out,
        name=name,
    )
    if settings.peers:
        require_peers()
    facts = run_job(settings.job("environment"))
    if facts["status"] != "ok":
        raise BenchError(f"the measurements cannot start: {facts['message']}")
    settings = replace(settings, device=facts["device"])
    log = ResultLog(settings.out / f"{settings.stem}.jsonl", measurement_key(settings, facts))
    path = settings.out / f"{settings.stem}{'-largest' if largest_batch else ''}"
    title = ", ".join(report.labels(settings, facts))
    if largest_batch:
        with _progress() as progress:
            found = largest_batches(settings, log, run_job, progress)
        batches = {one.label: one.batch for one in found}
        table = [
            report.largest_cells(one, batches[settings.baseline(variant).label])
            for one, variant in zip(found, settings.variants, strict=True)
        ]
        notes = [report.largest_note(), *report.remarks(found)]
        content = report.document(settings, facts, f"{settings.command} --largest-batch")
        content["largest_batch"] = [asdict(one) for one in found]
    else:
        with _progress() as progress:
            rows = measure(settings, log, WorkerProcess, progress)
        summaries = summarise(settings, rows)
        table = [report.cells(summary) for summary in summaries]
        notes = [report.note(settings, rows[0]["load"]), *report.remarks(summaries)]
        content = report.measured_document(settings, facts, rows, summaries)
        path.parent.mkdir(parents=True, exist_ok=True)
        report.plot(summaries, title, path.with_name(f"{path.name}.png"))
    _write(path, content, report.as_markdown(title, table, [*notes, f"`{content['command']}`"]))
    report.show(title, table, notes)
    echo(f"written: {path}.json, .md{'' if largest_batch else ', .png'}")


def _write(path: Path, content: dict[str, Any], page: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path.with_name(f"{path.name}.json"), json.dumps(content, indent=1) + "\n")
    write_atomic(path.with_name(f"{path.name}.md"), page)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show a bar on standard error; plain lines where that is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar(*columns, TextColumn("{task.description}", markup=False)) as (bars, bar):

        def show(done: int, total: int, what: str) -> None:
            bars.update(bar, completed=done, total=total, description=what)
            if not bars.console.is_terminal and done < total:
                echo(f"{done + 1}/{total} {what}", err=True)

        yield show
