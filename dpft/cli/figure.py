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
from dpft.reproduce.figures.content import Content, rows
from dpft.reproduce.figures.documents import read_benches
from dpft.reproduce.figures.files import save
from dpft.reproduce.figures.materials import Materials, Part
from dpft.reproduce.figures.private import WARNING
from dpft.reproduce.figures.registry import FIGURES, Figure, Kind, load
from dpft.reproduce.tables.composition import Composer
from dpft.reproduce.tables.found import Index, make_index
from dpft.reproduce.tables.missing import Missing, missing
from dpft.reproduce.tables.plan import SCALES, make_plan

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
    if (only_missing or run) and not figure.parts:
        raise ConfigError(
            f"{name} needs no runs of its own ({figure.kind}); leave --missing and --run out"
        )
    if figure.kind is Kind.COMPUTED and extra:
        raise ConfigError(f"got {' '.join(extra)}, but {name} is computed from the paper alone")
    chosen = None if seeds is None else chosen_seeds(seeds)
    where = record_folders(folders, extra)
    index = make_index(where) if figure.parts else Index()
    parts = _parts(figure, scale, chosen, extra, index)
    lacking = _lacking(parts)
    if only_missing:
        for one in lacking:
            echo(one.command)
        echo(f"{len(lacking)} runs are missing; --run makes them", err=True)
        return
    failed: typer.Exit | None = None
    if run:
        stem = f"figures/{figure.name.replace('/', '-')}-{scale}"
        failed = make_missing(stem, lacking, launcher, extra, keep_going)
        index = make_index(record_folders(folders, extra, made=True))
        parts = tuple(replace(part, index=index) for part in parts)
        lacking = _lacking(parts)
    found, damaged = read_benches(benches or None)
    tell_left_out((*index.damaged, *damaged))
    single = tuple(folder for folder in folders if (folder / "private").is_dir())
    with _progress(figure) as tell:
        content = figure.content(Materials(scale, parts, found, single, tell))
    _write(figure, content, scale, out, lacking)
    if failed is not None:
        raise failed


def _parts(
    figure: Figure,
    scale: str,
    seeds: Sequence[int] | None,
    extra: Sequence[str],
    index: Index,
) -> tuple[Part, ...]:
    """Its tables and lists, planned where they have this scale.

    Raises:
        ConfigError: if none has it.
    """
    tables = [part.load() for part in figure.parts]
    has_scale = [scale == "paper" or table.laptop is not None for table in tables]
    if tables and not any(has_scale):
        raise ConfigError(
            f"{figure.name} has no runs that fit a laptop; type dpft figure {figure.name} "
            "scale=paper"
        )
    if not tables:
        return ()
    with Composer() as composer:
        plans = [
            make_plan(table, composer, scale, seeds, extra) if has else None
            for table, has in zip(tables, has_scale, strict=True)
        ]
    return tuple(
        Part(table, plan, index, part.own)
        for part, table, plan in zip(figure.parts, tables, plans, strict=True)
    )


def _lacking(parts: Sequence[Part]) -> list[Missing]:
    """Runs that any part lacks, each once."""
    found: dict[tuple[str, int], Missing] = {}
    for part in parts:
        for one in missing(part.plan, part.index) if part.plan is not None else ():
            found.setdefault((one.planned.key, one.seed), one)
    return list(found.values())


def _write(
    figure: Figure, content: Content, scale: str, out: Path, lacking: Sequence[Missing]
) -> None:
    typed = shlex.join(["dpft", "figure", figure.name, f"scale={scale}"])
    if not rows(content):
        raise ConfigError(
            f"{figure.name} has nothing to draw: no number is printed, and none of its "
            f"{len(lacking)} runs is recorded; type {typed} --missing for their commands, --run to "
            "make them"
        )
    paths = save(content, out / "private" if content.private else out)
    for path in paths:
        echo(str(path))
    if content.private:
        secho(f"warning: {WARNING}", fg=typer.colors.YELLOW, err=True)
    tell_lacking(len(lacking), typed)


def _list(folders: Sequence[Path], benches: Sequence[Path]) -> None:
    """Every figure with its kind and what is at hand for it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from dpft.reproduce.tables.overview import overview

    index = make_index(record_folders(folders, ()))
    found, _ = read_benches(benches or None)
    table = Table(box=box.SIMPLE_HEAD, caption_justify="left")
    for heading in ("figure", "made from", "scale=paper", "scale=laptop", "title"):
        table.add_column(heading, justify="right" if "scale" in heading else "left")
    with Composer() as composer:
        for figure in FIGURES:
            entries = overview([part.load() for part in figure.parts], index, composer)
            told = []
            for scale in SCALES:
                counts = [e.numbers[scale] for e in entries if scale in e.numbers]
                told.append(
                    f"{sum(x for x, _ in counts)}/{sum(n for _, n in counts)}" if counts else "-"
                )
            made = str(figure.kind)
            if figure.kind is Kind.BENCH:
                made += f" ({len(found)} files)"
            table.add_row(figure.name, made, *told, Text(figure.title))
    make_console().print(table)
    echo(
        "numbers of runs at hand / numbers that runs can give; computed ones need nothing, private "
        "ones a run's noiseless files; type dpft figure NAME for one"
    )


@contextmanager
def _progress(figure: Figure) -> Iterator[Callable[[int, int], None]]:
    """Tells how far a computation is, where there is a terminal to tell it on."""
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
