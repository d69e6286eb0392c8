"""``dpft bench``: time and memory of clipping styles and peers against non-private training."""

import inspect
import json
import os
import tempfile
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from dpft.cli.options import Settings
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.overrides import check_budget
from dpft.config.schema import parse
from dpft.report.console import make_console
from dpft.report.terminal import echo
from dpft.reproduce.bench import choices, measure
from dpft.runs.atomic import write_atomic
from dpft.runs.environment import usable_cores


def bench_verb(
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
    ] = choices.DEFAULT_STYLES,
    peers: Annotated[
        str,
        typer.Option(
            help="Opacus' methods to compare with: opacus, opacus-ghost. Implies --untied."
        ),
    ] = "",
    rounds: Annotated[
        int, typer.Option(help="Fresh processes per style, interleaved.")
    ] = choices.DEFAULT_ROUNDS,
    steps: Annotated[int | None, typer.Option(help="Timed steps per process.")] = None,
    untied: Annotated[
        bool, typer.Option("--untied", help="Output head and embedding are separate parameters.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16 (autocast) or float64.")
    ] = "float32",
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = choices.DEFAULT_OUT,
) -> None:
    """Time and memory of clipping, against non-private training and peers: dpft bench --model gpt2

    Writes JSON and a plot; OMP_NUM_THREADS sets the threads. dpft plan --largest finds the largest
    batch.

    A whole run, private or not, compiled or not; writes nothing, spends no budget:
    dpft bench --run task=e2e model=gpt2 clip=bk precision=bfloat16
    """
    typed = dict(locals())  # all options by their names
    del typed["overrides"], typed["run"]
    given = os.environ.get("OMP_NUM_THREADS", "")
    threads = (int(given) if given.isdecimal() else usable_cores()) or 1
    if run:
        usual = inspect.signature(bench_verb).parameters
        for key in typed.keys() - {"steps"}:
            if typed[key] != usual[key].default:
                option = f"--{key.replace('_', '-')}"
                raise ConfigError(
                    f"got {option} next to --run; type a setting of dpft train instead"
                )
        _whole_run(overrides or [], threads, steps)
        return
    if overrides:
        raise ConfigError(f"got {overrides[0]}; expected it next to --run")
    from dpft.reproduce.bench import documents

    settings = choices.BenchSettings.make(**typed, threads=threads)
    if settings.peers and find_spec("opacus") is None:
        raise ConfigError(
            "peers need Opacus, which is not installed: type pip install 'dpft[peers]'"
        )
    facts = measure.environment(settings.job("environment"))
    settings = replace(settings, device=facts["device"])
    rows = measure.measure(settings, measure.WorkerProcess, partial(echo, err=True))
    summaries = documents.summarise(settings, rows)
    table = documents.table(settings, facts, rows, summaries)
    content = documents.document(settings, facts, rows, summaries)
    path = settings.out / settings.stem
    path.parent.mkdir(parents=True, exist_ok=True)
    documents.plot(summaries, table.title, path.with_name(f"{path.name}.png"))
    write_atomic(path.with_name(f"{path.name}.json"), json.dumps(content, indent=1) + "\n")
    table.show(make_console())
    echo(f"written: {path}.json, .png")


def _whole_run(words: list[str], threads: int, steps: int | None) -> None:
    """Time the steps of a run, and print where their time goes."""
    from dpft.reproduce.bench import whole_run

    check_budget(words)
    facts = measure.environment({"threads": threads, "device": parse(compose(words)).device})
    load, cuda = os.getloadavg()[0], facts["device"] == "cuda"
    asked = (steps or whole_run.STEPS) * (1 + cuda)
    with tempfile.TemporaryDirectory(prefix="dpft-bench-") as folder:
        jobs = whole_run.jobs_of(words, Path(folder), threads, asked)
        together = [list(jobs)] if not cuda else [[label] for label in jobs]
        found = measure.measure_runs(jobs, together, measure.WorkerProcess, partial(echo, err=True))
    whole_run.table(facts, load, found).show(make_console())
