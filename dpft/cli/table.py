"""``dpft table``: a paper's table beside recorded runs, and the runs that it lacks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import typer

from dpft.cli.formats import chosen_format
from dpft.cli.printing import make_console, tell_lacking, tell_left_out, write_out
from dpft.config.errors import ConfigError, suggestion
from dpft.report.terminal import echo, secho
from dpft.reproduce import papers
from dpft.reproduce.tables.cells import Filled, fill
from dpft.reproduce.tables.composition import Composer
from dpft.reproduce.tables.epsilons import epsilons
from dpft.reproduce.tables.found import FOLDERS, Index, make_index
from dpft.reproduce.tables.missing import Missing, missing, sweep_list
from dpft.reproduce.tables.plan import SCALES, make_plan


def main(
    name: str | None,
    words: Sequence[str] = (),
    *,
    scale: str | None = None,
    form: str | None = None,
    out: Path | None = None,
    seeds: str | None = None,
    folders: Sequence[Path] = (),
    only_missing: bool = False,
    run: bool = False,
    keep_going: bool = True,
) -> None:
    """Show a table, what it lacks, or all tables; or make the runs that it lacks.

    Args:
        name: ``PAPER/NUMBER``, or a paper for a list of its tables; None: a list of all.
        words: ``scale=...``, overrides of every run, and Hydra's own for ``run``.
        scale: ``paper`` or ``laptop``.
        form: one of the formats; None: by the suffix of ``out``, else the terminal's.
        out: file to write to.
        seeds: numbers with commas.
        folders: where records are looked for; none: ``runs`` and ``results``.
        only_missing: print the missing commands, and nothing else.
        run: make the missing runs by ``dpft sweep``, then show the table.
        keep_going: whether the other runs go on after one failed.

    Raises:
        ConfigError: for what cannot be, before anything runs.
    """
    from dpft.reproduce.tables.render import SUFFIXES

    scale, launcher, extra = scale_and_settings(words, scale)
    form = chosen_format(form, out, SUFFIXES)
    if only_missing and run:
        raise ConfigError("got --missing and --run; expected one of them")
    if name is None or "/" not in name:
        _list(name, folders, [*words] + ["--run"] * run + ["--missing"] * only_missing)
        return
    table = papers.load(*name.split("/", 1))
    chosen = None if seeds is None else chosen_seeds(seeds)
    index = make_index(record_folders(folders, extra))
    with Composer() as composer:
        plan = make_plan(table, composer, scale, chosen, extra)
        lacking = missing(plan, index)
        if only_missing:
            _print_missing(lacking, index)
            return
        # Before the runs are made, since Hydra is set up here.
        printed = epsilons(table, plan.rows, composer)
    failed: typer.Exit | None = None
    if run:
        stem = f"tables/{table.paper}-{table.number}-{scale}"
        failed = make_missing(stem, lacking, launcher, extra, keep_going)
        index = make_index(record_folders(folders, extra, made=True))
    _show(fill(plan, index, printed), form, out, len(missing(plan, index)))
    if failed is not None:
        raise failed


def scale_and_settings(words: Sequence[str], scale: str | None) -> tuple[str, list[str], list[str]]:
    """What was typed beside a name: the scale, what goes to the sweep, overrides of every run.

    Args:
        words: as typed; ``scale=...`` may be among them.
        scale: of the option.

    Raises:
        ConfigError: for two scales, or one that there is not.
    """
    settings = [word for word in words if not word.startswith("scale=")]
    typed = [word.partition("=")[2] for word in words if word.startswith("scale=")]
    if scale is not None and any(value != scale for value in typed):
        raise ConfigError(f"got --scale {scale} and scale={typed[-1]}; expected one of them")
    scale = typed[-1] if typed else scale or "paper"
    if scale not in SCALES:
        raise ConfigError(
            f"scale is {scale!r}{suggestion(scale, SCALES)}; expected {' or '.join(SCALES)}"
        )
    launcher = [word for word in settings if word.lstrip("+~").startswith(("hydra/", "hydra."))]
    return scale, launcher, [word for word in settings if word not in launcher]


def chosen_seeds(text: str) -> list[int]:
    """The numbers of ``--seeds 0,1,2``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise ConfigError(f"--seeds is {text!r}; expected different numbers: type --seeds 0,1,2")
    return [int(part) for part in parts]


def record_folders(
    given: Sequence[Path], extra: Sequence[str], *, made: bool = False
) -> list[Path]:
    """Where to look: what was given, or the usual folders and where new runs go.

    Args:
        given: by the user.
        extra: overrides, which may say where new runs go.
        made: whether runs were just made: they count too, and their folder may be new.
    """
    own = runs_dir(extra)
    if not given:
        return [folder for folder in dict.fromkeys([*map(Path, FOLDERS), own]) if folder.is_dir()]
    return [*given, own] if made and own.is_dir() else list(given)


def runs_dir(extra: Sequence[str]) -> Path:
    """Where new runs go, by overrides."""
    given = [word.partition("=")[2] for word in extra if word.startswith("runs_dir=")]
    return Path(given[-1].strip("'\"") if given else "runs")


def _list(paper: str | None, folders: Sequence[Path], beside: Sequence[str]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from dpft.reproduce.tables.overview import overview

    known = papers.names()
    shown = [name for name in known if paper is None or name.startswith(f"{paper}/")]
    if not shown:
        some = dict.fromkeys([*(name.partition("/")[0] for name in known), *known])
        raise ConfigError(
            f"there is no table {paper!r}{suggestion(str(paper), some)}; type dpft table for all"
        )
    if beside:
        raise ConfigError(
            f"got {' '.join(beside)} without a table; type one, as in dpft table {shown[0]}"
        )
    index = make_index(record_folders(folders, ()))
    with Composer() as composer:
        entries = overview([papers.load(*name.split("/", 1)) for name in shown], index, composer)
    table = Table(box=box.SIMPLE_HEAD, caption_justify="left")
    for heading in ("table", "scale=paper", "scale=laptop", "title"):
        table.add_column(heading, justify="right" if "scale" in heading else "left")
    for entry in entries:
        counts = [entry.numbers.get(scale) for scale in SCALES]
        told = ["-" if count is None else f"{count[0]}/{count[1]}" for count in counts]
        table.add_row(entry.table.name, *told, Text(entry.table.title))
    make_console().print(table)
    echo("cells with a number / cells that a run can fill; type dpft table NAME for one")
    tell_left_out(index.damaged)


def _print_missing(lacking: Sequence[Missing], index: Index) -> None:
    for one in lacking:
        echo(one.command)
    said = f"{len(lacking)} runs are missing" if lacking else "nothing is missing"
    echo(f"{said}; --run makes them" if lacking else said, err=True)
    tell_left_out(index.damaged)


def make_missing(
    stem: str,
    lacking: Sequence[Missing],
    launcher: Sequence[str],
    extra: Sequence[str],
    keep_going: bool,
) -> typer.Exit | None:
    """Make the missing runs; a sweep that did not finish is returned, to be told at the end.

    Args:
        stem: of the file of settings below the runs' folder.
        lacking: the runs.
        launcher: words for Hydra.
        extra: overrides of every run.
        keep_going: whether the other runs go on after one failed.
    """
    if not lacking:
        echo("nothing is missing", err=True)
        return None
    from dpft.cli import sweep

    file = runs_dir(extra) / f"{stem}.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(sweep_list(lacking), encoding="utf-8")
    where = [word for word in extra if word.startswith("runs_dir=")]
    echo(f"{len(lacking)} runs are missing; their settings are in {file}", err=True)
    try:
        sweep.main([*launcher, *where], file=file, keep_going=keep_going, chooses=False)
    except typer.Exit as stopped:
        return stopped
    return None


def _show(filled: Filled, form: str, out: Path | None, lacking: int) -> None:
    from dpft.reproduce.tables.render import FORMATS, show

    if out is not None:
        write_out(out, FORMATS[form](filled))
    elif form == "terminal":
        show(filled, make_console())
    else:
        echo(FORMATS[form](filled), nl=False)
    if form != "terminal" or out is not None:
        for remark in filled.remarks:
            secho(f"record: {remark}", fg=typer.colors.YELLOW, err=True)
    have, possible = filled.numbers
    echo(f"{have} of {possible} cells have a number", err=True)
    typed = shlex.join(["dpft", "table", filled.table.name, f"scale={filled.scale}"])
    tell_lacking(lacking, typed)
