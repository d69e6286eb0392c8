"""``dpft table``: a paper's table next to recorded runs, and the runs that it lacks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
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
from dpft.cli.paper_runs import Request, print_lacking, print_list, print_missing
from dpft.config.errors import ConfigError, suggestion
from dpft.report.terminal import echo
from dpft.reproduce import papers
from dpft.reproduce.tables.cells import fill, missing, numbers_at
from dpft.reproduce.tables.epsilons import epsilons
from dpft.reproduce.tables.plan import SCALES, make_plan


def main(
    name: Annotated[
        str | None, typer.Argument(help="PAPER/NUMBER, such as li2022/2; none: list all.")
    ] = None,
    overrides: Overrides = None,
    scale: Scale = None,
    only_missing: OnlyMissing = False,
    run: MakeRuns = False,
    form: Annotated[str | None, typer.Option("--format", help="terminal, markdown or csv.")] = None,
    out: OutFile = None,
    seeds: Seeds = None,
    folders: Records = None,
    keep_going: KeepGoing = True,
) -> None:
    """A paper's table next to your runs, and the missing ones: dpft table li2022/2 scale=laptop

    Without a name it lists every table. Each cell: printed number; ours with its deviation over
    seeds; difference, verdict and marks; docs/how-to/tables.md defines them.

    \b
    dpft table li2022/2 --missing  # the commands that would fill it
    dpft table li2022/7 scale=laptop --run  # run them, then show the table
    dpft table he2022/4 --seeds 0,1 --out table.csv  # or .md, .txt
    """  # noqa: D301
    from dpft.reproduce.tables.render import FORMATS, SUFFIXES, show

    words = overrides or []
    request = Request.parse(words, scale, seeds, folders, only_missing=only_missing, run=run)
    form = chosen_format(form, out, SUFFIXES)
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
    filled = fill(plan, index, printed)
    write_or_print(out, form, lambda: FORMATS[form](filled), lambda console: show(filled, console))
    if form != "terminal" or out is not None:
        for remark in filled.remarks:
            warn(f"record: {remark}", err=True)
    have, possible = filled.numbers
    echo(f"{have} of {possible} cells have a number ({index.looked})", err=True)
    typed = shlex.join(["dpft", "table", table.name, f"scale={request.scale}"])
    print_lacking(len(missing(plan, index)), typed)
    if failed is not None:
        raise failed


def _list(paper: str | None, request: Request, settings: Sequence[str]) -> None:
    """Print every table, or those of a paper, with how many of its cells have a number."""
    known = papers.names()
    names = [name for name in known if paper is None or name.startswith(f"{paper}/")]
    if not names:
        some = dict.fromkeys([*(name.partition("/")[0] for name in known), *known])
        raise ConfigError(
            f"there is no table {paper!r}{suggestion(str(paper), some)}; type dpft table for all"
        )
    if settings:
        raise ConfigError(
            f"got {' '.join(settings)} without a table; type one, as in dpft table {names[0]}"
        )
    index = request.index()
    rows = []
    for table in (papers.load(*name.split("/", 1)) for name in names):
        counts = [numbers_at(table, scale, index) for scale in SCALES]
        cells = ["-" if count is None else f"{count[0]}/{count[1]}" for count in counts]
        rows.append((table.name, *cells, table.title))
    print_list("table", rows)
    echo("cells with a number / cells that a run can fill; type dpft table NAME for one")
    echo(index.looked, err=True)
    warn_left_out(index.damaged)
