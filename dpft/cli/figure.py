"""``dpft figure``: a paper's figure, computed or from one's own runs and benchmarks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import typer

from dpft.cli.printing import make_console, tell_lacking, tell_left_out
from dpft.cli.table import chosen_seeds, make_missing, record_folders, scale_and_settings
from dpft.config.errors import ConfigError
from dpft.report.console import Console
from dpft.report.terminal import echo, secho
from dpft.reproduce.bench.documents import read_benches
from dpft.reproduce.figures.build import build
from dpft.reproduce.figures.catalog import Figure, Kind, figures, load
from dpft.reproduce.figures.content import Content
from dpft.reproduce.figures.inputs import Inputs, plan_tables
from dpft.reproduce.figures.private import WARNING
from dpft.reproduce.tables.composition import Composer
from dpft.reproduce.tables.found import Index, make_index
from dpft.reproduce.tables.plan import SCALES

DEFAULT_OUT = Path("runs/figures")


def main(
    name: str | None,
    words: Sequence[str] = (),
    *,
    scale: str | None = None,
    out: Path = DEFAULT_OUT,
    seeds: str | None = None,
    folders: Sequence[Path] = (),
    benches: Sequence[Path] = (),
    only_missing: bool = False,
    run: bool = False,
    keep_going: bool = True,
) -> None:
    """Draw a figure, name or make the runs that it lacks, or list all figures.

    Args:
        name: ``PAPER/NUMBER``; None: a list of all.
        words: ``scale=...``, overrides of every run, and Hydra's own for ``run``.
        scale: ``paper`` or ``laptop``.
        out: folder of the files; those made of noiseless data go to ``private`` below it.
        seeds: numbers with commas.
        folders: where records are looked for, or single runs; none: ``runs`` and ``results``.
        benches: where files of ``dpft bench`` are; none: ``runs/bench`` and ``results/bench``.
        only_missing: print the commands of the missing runs, and nothing else.
        run: make the missing runs by ``dpft sweep``, then draw.
        keep_going: whether the other runs go on after one failed.

    Raises:
        ConfigError: for what cannot be, before anything runs, and where there is nothing to draw.
    """
    scale, launcher, extra = scale_and_settings(words, scale)
    if only_missing and run:
        raise ConfigError("got --missing and --run; expected one of them")
    if name is None:
        if words or only_missing or run:
            raise ConfigError("got settings without a figure; type one: dpft figure li2022/6")
        _list(folders, benches)
        return
    figure = load(name)
    if (only_missing or run) and not figure.tables:
        raise ConfigError(
            f"{name} needs no runs of its own ({figure.kind}); leave --missing and --run out"
        )
    if figure.kind is Kind.COMPUTED and extra:
        raise ConfigError(f"got {' '.join(extra)}, but {name} is computed from the paper alone")
    chosen = None if seeds is None else chosen_seeds(seeds)
    inputs = Inputs(scale, runs=tuple(one for one in folders if (one / "private").is_dir()))
    index = Index()
    if figure.tables:
        index = make_index(record_folders(folders, extra))
        with Composer() as composer:
            inputs = replace(
                inputs, tables=plan_tables(figure, scale, index, composer, chosen, extra)
            )
    if only_missing:
        for one in inputs.missing:
            echo(one.command)
        echo(f"{len(inputs.missing)} runs are missing; --run makes them", err=True)
        return
    failed: typer.Exit | None = None
    if run:
        stem = f"figures/{figure.stem}-{scale}"
        failed = make_missing(stem, inputs.missing, launcher, extra, keep_going)
        index = make_index(record_folders(folders, extra, made=True))
        inputs = replace(inputs, tables=tuple(replace(one, index=index) for one in inputs.tables))
    files, damaged = read_benches(benches or None)
    tell_left_out((*index.damaged, *damaged))
    with _progress(figure) as progress:
        content = build(figure, replace(inputs, benches=files, progress=progress))
    _write(figure, content, scale, out, len(inputs.missing))
    if failed is not None:
        raise failed


def _write(figure: Figure, content: Content, scale: str, out: Path, lacking: int) -> None:
    typed = shlex.join(["dpft", "figure", figure.name, f"scale={scale}"])
    if not any(panel.points for panel in content.panels):
        raise ConfigError(
            f"{figure.name} has nothing to draw: no number is printed, and none of its "
            f"{lacking} runs is recorded; type {typed} --missing for their commands, --run to "
            "make them"
        )
    from dpft.reproduce.figures.draw import save

    for path in save(figure, content, out / "private" if figure.private else out):
        echo(str(path))
    if figure.private:
        secho(f"warning: {WARNING}", fg=typer.colors.YELLOW, err=True)
    tell_lacking(lacking, typed)


def _list(folders: Sequence[Path], benches: Sequence[Path]) -> None:
    """Every figure with its kind and how many of its numbers are there."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from dpft.reproduce.tables.overview import overview

    index = make_index(record_folders(folders, ()))
    files, _ = read_benches(benches or None)
    table = Table(box=box.SIMPLE_HEAD, caption_justify="left")
    for heading in ("figure", "made from", "scale=paper", "scale=laptop", "title"):
        table.add_column(heading, justify="right" if "scale" in heading else "left")
    with Composer() as composer:
        for figure in figures().values():
            entries = overview([one.load() for one in figure.tables], index, composer)
            made = f"bench ({len(files)} files)" if figure.kind is Kind.BENCH else figure.kind
            cells = []
            for scale in SCALES:
                counts = [e.numbers[scale] for e in entries if scale in e.numbers]
                sums = map(sum, zip(*counts, strict=True))
                cells.append("/".join(map(str, sums)) or "-")
            table.add_row(figure.name, made, *cells, Text(figure.title))
    make_console().print(table)
    echo(
        "scores recorded / scores that runs can give; computed figures need nothing, private "
        "ones a run's noiseless files; type dpft figure NAME for one"
    )


@contextmanager
def _progress(figure: Figure) -> Iterator[Callable[[int, int], None]]:
    """Shows how far a computation is, where there is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    bars = Progress(
        *(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    bar = bars.add_task(figure.name, total=None)
    with bars:
        yield lambda done, total: bars.update(bar, completed=done, total=total)
