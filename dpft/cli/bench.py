"""``dpft bench``: time and memory of clipping styles and peers against non-private training."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from dpft.cli.output import progress_bar
from dpft.config.errors import ConfigError
from dpft.report.terminal import echo
from dpft.reproduce.bench import catalog, measure, report
from dpft.reproduce.bench.documents import summarise
from dpft.runs.atomic import write_atomic
from dpft.runs.environment import usable_cores


def main(
    model: Annotated[
        str,
        typer.Option(
            help="tiny, gpt2, gpt2-medium, -large, -xl, smollm2-135m, roberta-base, "
            "vit-small, vit-base or wrn16-4; random weights."
        ),
    ] = "tiny",
    batch: Annotated[int | None, typer.Option(help="Records per step, B.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens per record, T.")] = None,
    styles: Annotated[
        str, typer.Option(help="Clipping styles, with commas; uniform:6 for six groups; all.")
    ] = catalog.DEFAULT_STYLES,
    peers: Annotated[
        str, typer.Option(help="opacus, opacus-ghost; -linear swaps Conv1D for Linear first.")
    ] = "",
    rounds: Annotated[
        int, typer.Option(help="Fresh processes per style, interleaved.")
    ] = catalog.DEFAULT_ROUNDS,
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
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = catalog.DEFAULT_OUT,
    name: Annotated[str | None, typer.Option(help="Their file name, without suffix.")] = None,
    largest_batch: Annotated[
        bool, typer.Option("--largest-batch", help="Search for it instead of timing (CUDA).")
    ] = False,
    memory: Annotated[
        float | None, typer.Option(help="GiB of the GPU that a largest batch may take.")
    ] = None,
) -> None:
    """Time and memory of clipping, against non-private training and peers: dpft bench --model gpt2

    Writes JSON, a Markdown table and a plot.
    """
    typed = dict(locals())  # all options by their names
    del typed["largest_batch"]
    if memory is not None and not largest_batch:
        raise ConfigError("--memory limits what a largest batch may take: type --largest-batch too")
    given = os.environ.get("OMP_NUM_THREADS", "")
    typed["threads"] = threads or (int(given) if given.isdecimal() else usable_cores()) or 1
    settings = catalog.BenchSettings.make(**typed)
    if settings.peers:
        catalog.require_peers()
    facts = measure.run_job(settings.job("environment"))
    if facts["status"] != "ok":
        raise measure.BenchError(f"the measurements cannot start: {facts['message']}")
    settings = replace(settings, device=facts["device"])
    path = settings.out / f"{settings.stem}{'-largest' if largest_batch else ''}"
    path.parent.mkdir(parents=True, exist_ok=True)
    title = ", ".join(report.labels(settings, facts))
    if largest_batch:
        with _progress() as progress:
            found = measure.largest_batches(settings, measure.run_job, progress)
        batches = {one.label: one.batch for one in found}
        table = [
            report.largest_cells(one, batches[settings.baseline(variant).label])
            for one, variant in zip(found, settings.variants, strict=True)
        ]
        notes = [report.LARGEST_NOTE, *report.remarks(found)]
        command = f"{settings.command} --largest-batch"
        results: dict[str, object] = {"largest_batch": [asdict(one) for one in found]}
    else:
        with _progress() as progress:
            rows = measure.measure(settings, measure.WorkerProcess, progress)
        summaries = summarise(settings, rows)
        table = [report.cells(summary) for summary in summaries]
        notes = [report.note(settings, rows[0]["load"]), *report.remarks(summaries)]
        command = settings.command
        results = {"summary": [asdict(one) for one in summaries], "measurements": rows}
        report.plot(summaries, title, path.with_name(f"{path.name}.png"))
    content = report.document(settings, facts, command, **results)
    page = report.as_markdown(title, table, [*notes, f"`{command}`"])
    write_atomic(path.with_name(f"{path.name}.json"), json.dumps(content, indent=1) + "\n")
    write_atomic(path.with_name(f"{path.name}.md"), page)
    report.show(title, table, notes)
    echo(f"written: {path}.json, .md{'' if largest_batch else ', .png'}")


@contextmanager
def _progress() -> Iterator[measure.Progress]:
    """Show a bar on standard error; plain lines where that is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar(*columns, TextColumn("{task.description}", markup=False)) as (bars, bar):

        def show(done: int, total: int, what: str) -> None:
            bars.update(bar, completed=done, total=total, description=what)
            if not bars.console.is_terminal and done < total:
                echo(f"{done + 1}/{total} {what}", err=True)

        yield show
