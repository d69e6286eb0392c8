"""``dpft bench``: time and memory of clipping styles and peers against non-private training."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dpft.cli.output import progress_bar
from dpft.config.errors import ConfigError
from dpft.report.terminal import echo
from dpft.reproduce.bench import report
from dpft.reproduce.bench.catalog import DEFAULT_STYLES, require_peers
from dpft.reproduce.bench.largest import largest_batches, require_cuda
from dpft.reproduce.bench.processes import BenchError, WorkerProcess, code_fingerprint, run_job
from dpft.reproduce.bench.rounds import ResultLog, Tell, measure, measurement_key
from dpft.reproduce.bench.settings import DEFAULT_OUT, DEFAULT_ROUNDS, BenchSettings
from dpft.reproduce.bench.statistics import summarise
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
    explain: Annotated[
        bool, typer.Option("--explain", help="Only show the form chosen for each layer.")
    ] = False,
    largest_batch: Annotated[
        bool, typer.Option("--largest-batch", help="Search for it instead of timing (CUDA).")
    ] = False,
    memory: Annotated[
        float | None, typer.Option(help="GiB of the GPU that a largest batch may take.")
    ] = None,
) -> None:
    """Time and memory of clipping, beside non-private training and peers: dpft bench --model gpt2

    Writes JSON, a Markdown table and a plot; the same command continues where it was stopped.
    """
    if memory is not None and not largest_batch:
        raise ConfigError(
            f"--memory {memory:g} limits what a largest batch may take: type --largest-batch too, "
            "or leave it out"
        )
    settings = BenchSettings.make(
        model=model,
        batch=batch,
        length=length,
        styles=styles,
        peers=peers,
        rounds=rounds,
        steps=steps,
        threads=_usual_threads() if threads is None else threads,
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
    if explain:
        _explain(settings)
        return
    journal = ResultLog(
        settings.out / f"{settings.stem}.jsonl",
        measurement_key(settings, facts, code_fingerprint()),
    )
    path = settings.out / settings.stem
    title = ", ".join(report.labels(settings, facts))
    if largest_batch:
        require_cuda(settings.device)
        _largest(settings, facts, journal, path.with_name(f"{path.name}-largest"), title)
    else:
        _measure(settings, facts, journal, path, title)


def _usual_threads() -> int:
    """``OMP_NUM_THREADS`` where it is set, else the cores that this process may use."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    return usable_cores() or 1


def _measure(
    settings: BenchSettings, facts: dict[str, Any], journal: ResultLog, path: Path, title: str
) -> None:
    from dpft.reproduce.bench.plot import plot

    with _progress() as report_progress:
        rows = measure(settings, journal, WorkerProcess, report_progress)
    summaries = summarise(settings, rows)
    table = [report.cells(summary) for summary in summaries]
    notes = [report.note(settings, rows[0]["load"]), *report.remarks(summaries)]
    _write(path, report.document(settings, facts, rows, summaries), title, table, notes)
    plot(summaries, title, path)
    report.show(title, table, notes)
    echo(f"written: {path}.json, .md, .png, .svg, .jsonl")


def _largest(
    settings: BenchSettings, facts: dict[str, Any], journal: ResultLog, path: Path, title: str
) -> None:
    from dpft.reproduce.bench.plot import plot_largest

    with _progress() as report_progress:
        found = largest_batches(settings, journal, run_job, report_progress)
    batches = {one.label: one.batch for one in found}
    table = [
        report.largest_cells(one, batches[settings.baseline(variant).label])
        for one, variant in zip(found, settings.variants, strict=True)
    ]
    notes = [report.largest_note(), *report.remarks(found)]
    _write(path, report.largest_document(settings, facts, found), title, table, notes)
    plot_largest(found, title, path)
    report.show(title, table, notes)
    echo(f"written: {path}.json, .md, .png, .svg")


def _explain(settings: BenchSettings) -> None:
    """One forward and backward of each style that clips."""
    for variant in settings.variants:
        if not variant.peer and variant != settings.baseline(variant):
            report.show_explained(variant.label, run_job(settings.job("explain", variant)))


def _write(
    path: Path,
    document: dict[str, Any],
    title: str,
    table: list[report.Cells],
    notes: list[str],
) -> None:
    from dpft.runs.atomic import write_atomic

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path.with_name(f"{path.name}.json"), json.dumps(document, indent=1) + "\n")
    page = report.as_markdown(title, table, [*notes, f"`{document['command']}`"])
    write_atomic(path.with_name(f"{path.name}.md"), page)


@contextmanager
def _progress() -> Iterator[Tell]:
    """A bar on standard error; plain lines where that is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar(*columns, TextColumn("{task.description}", markup=False)) as (bars, bar):

        def show(done: int, total: int, what: str) -> None:
            bars.update(bar, completed=done, total=total, description=what)
            if not bars.console.is_terminal and done < total:
                echo(f"{done + 1}/{total} {what}", err=True)

        yield show
