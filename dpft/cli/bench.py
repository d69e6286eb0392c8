"""``dpft bench``: time and memory of clipping styles and peers against non-private training."""

import inspect
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from dpft.cli.options import AsJson, Settings
from dpft.cli.output import print_table, progress_bar
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.overrides import check_budget
from dpft.config.schema import parse
from dpft.report.terminal import echo
from dpft.reproduce.bench import catalog, measure, report, run_figures
from dpft.reproduce.bench.documents import summarise
from dpft.runs.atomic import write_atomic
from dpft.runs.environment import usable_cores


def main(
    overrides: Settings = None,
    run: Annotated[
        bool, typer.Option("--run", help="Time a whole run of these settings, not one step.")
    ] = False,
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
    as_json: AsJson = False,
) -> None:
    """Time and memory of clipping, against non-private training and peers: dpft bench --model gpt2

    Writes JSON, a Markdown table and a plot.

    A whole run, private or not, compiled or not; writes nothing, spends no budget:
    dpft bench --run task=e2e model=gpt2 clip=bk precision=bfloat16
    """
    typed = dict(locals())  # all options by their names
    for other in ("overrides", "run", "largest_batch", "as_json"):
        del typed[other]
    if memory is not None and not largest_batch:
        raise ConfigError("--memory limits what a largest batch may take: type --largest-batch too")
    given = os.environ.get("OMP_NUM_THREADS", "")
    cores = threads or (int(given) if given.isdecimal() else usable_cores()) or 1
    if run:
        usual = inspect.signature(main).parameters
        for key in typed.keys() - {"steps", "threads"}:
            if typed[key] != usual[key].default:
                option = f"--{key.replace('_', '-')}"
                raise ConfigError(
                    f"got {option} next to --run; type a setting of dpft train instead"
                )
        _whole_run(overrides or [], cores, steps, as_json)
        return
    if overrides or as_json:
        raise ConfigError(f"got {(overrides or ['--json'])[0]}; expected it next to --run")
    settings = catalog.BenchSettings.make(**typed | {"threads": cores})
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


def _whole_run(words: list[str], threads: int, steps: int | None, as_json: bool) -> None:
    """Time the steps of a run, and print where their time goes."""
    check_budget(words)
    job = {"kind": "environment", "threads": threads, "device": parse(compose(words)).device}
    facts = measure.run_job(job)
    if facts["status"] != "ok":
        raise measure.BenchError(f"the run cannot start: {facts['message']}")
    facts["load"], cuda = os.getloadavg()[0], facts["device"] == "cuda"
    asked = (steps or run_figures.STEPS) * (1 + cuda)
    with tempfile.TemporaryDirectory(prefix="dpft-bench-") as folder, _progress() as progress:
        jobs = run_figures.jobs_of(words, Path(folder), threads, asked)
        found = measure.measure_runs(jobs, not cuda, measure.WorkerProcess, progress)
    if as_json:
        echo(json.dumps({"settings": words, **facts, "jobs": jobs, "results": found}, indent=1))
        return
    print_table(["a step", *found], run_figures.table(found, cuda), right=list(found))
    for line in run_figures.notes(facts, found):
        echo(line)


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
