"""``dpft table``: a paper's table beside recorded runs, and the runs that it lacks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dpft.cli.options import (
    KeepGoing,
    MakeRuns,
    OnlyMissing,
    OutFile,
    Overrides,
    Records,
    Scale,
    Seeds,
)
from dpft.cli.output import chosen_format, warn, warn_left_out, write_or_print
from dpft.cli.paper_runs import (
    Request,
    check_one_action,
    print_lacking,
    print_list,
    print_missing,
)
from dpft.config.errors import ConfigError, suggestion
from dpft.report.terminal import echo
from dpft.reproduce import papers
from dpft.reproduce.tables.cells import Filled, fill
from dpft.reproduce.tables.epsilons import epsilons
from dpft.reproduce.tables.missing import missing
from dpft.reproduce.tables.plan import SCALES, make_plan


def main(
    name: Annotated[
        str | None, typer.Argument(help="PAPER/NUMBER, such as li2022/2; none: list all.")
    ] = None,
    overrides: Overrides = None,
    scale: Scale = None,
    only_missing: OnlyMissing = False,
    run: MakeRuns = False,
    form: Annotated[
        str | None, typer.Option("--format", help="terminal, markdown, latex, csv or html.")
    ] = None,
    out: OutFile = None,
    seeds: Seeds = None,
    folders: Records = None,
    keep_going: KeepGoing = True,
) -> None:
    """A paper's table beside your runs, and the missing ones: dpft table li2022/2 scale=laptop

    Without a name it lists every table. Each cell: printed number; ours with its deviation over
    seeds; difference, verdict and marks; docs/how-to/tables.md defines them.

    \b
    dpft table li2022/2 --missing  # the commands that would fill it
    dpft table li2022/7 scale=laptop --run  # run them, then show the table
    dpft table he2022/4 --seeds 0,1 --out table.tex  # or .md, .csv, .html
    """  # noqa: D301
    from dpft.reproduce.tables.render import SUFFIXES

    words = overrides or []
    request = Request.parse(words, scale, seeds, folders)
    form = chosen_format(form, out, SUFFIXES)
    check_one_action(only_missing, run)
    if name is None or "/" not in name:
        _list(name, request, [*words] + ["--run"] * run + ["--missing"] * only_missing)
        return
    table = papers.load(*name.split("/", 1))
    index = request.index()
    plan = make_plan(table, request.scale, request.seeds, request.settings)
    lacking = missing(plan, index)
    if only_missing:
        print_missing(lacking)
        warn_left_out(index.damaged)
        return
    # Before the runs are made, since Hydra is set up here.
    printed = epsilons(table, plan.rows)
    failed: typer.Exit | None = None
    if run:
        stem = f"tables/{table.paper}-{table.number}"
        failed = request.make(stem, lacking, keep_going=keep_going)
        index = request.index(made=True)
    _show(fill(plan, index, printed), form, out, len(missing(plan, index)), index.looked)
    if failed is not None:
        raise failed


def _list(paper: str | None, request: Request, beside: Sequence[str]) -> None:
    from dpft.reproduce.tables.overview import overview

    known = papers.names()
    names = [name for name in known if paper is None or name.startswith(f"{paper}/")]
    if not names:
        some = dict.fromkeys([*(name.partition("/")[0] for name in known), *known])
        raise ConfigError(
            f"there is no table {paper!r}{suggestion(str(paper), some)}; type dpft table for all"
        )
    if beside:
        raise ConfigError(
            f"got {' '.join(beside)} without a table; type one, as in dpft table {names[0]}"
        )
    index = request.index()
    entries = overview([papers.load(*name.split("/", 1)) for name in names], index)
    rows = []
    for entry in entries:
        counts = [entry.numbers.get(scale) for scale in SCALES]
        cells = ["-" if count is None else f"{count[0]}/{count[1]}" for count in counts]
        rows.append((entry.table.name, *cells, entry.table.title))
    print_list("table", rows)
    echo("cells with a number / cells that a run can fill; type dpft table NAME for one")
    echo(index.looked, err=True)
    warn_left_out(index.damaged)


def _show(filled: Filled, form: str, out: Path | None, lacking: int, looked: str) -> None:
    from dpft.reproduce.tables.render import FORMATS, show

    write_or_print(out, form, lambda: FORMATS[form](filled), lambda console: show(filled, console))
    if form != "terminal" or out is not None:
        for remark in filled.remarks:
            warn(f"record: {remark}", err=True)
    have, possible = filled.numbers
    echo(f"{have} of {possible} cells have a number ({looked})", err=True)
    typed = shlex.join(["dpft", "table", filled.table.name, f"scale={filled.scale}"])
    print_lacking(lacking, typed)
