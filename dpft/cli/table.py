"""``dpft table``: a paper's table next to recorded runs, and the runs that it lacks."""

from typing import Annotated

import typer

from dpft.cli.options import MakeRuns, OnlyMissing, OutFile, Overrides, Records, Seeds
from dpft.cli.output import make_console, warn, warn_left_out
from dpft.cli.paper_runs import Request, print_missing
from dpft.config.errors import ConfigError, suggestion
from dpft.report.terminal import echo
from dpft.report.text_table import TextTable
from dpft.reproduce import papers
from dpft.reproduce.tables.cells import epsilons, fill, missing
from dpft.reproduce.tables.planned import make_plan
from dpft.runs.atomic import write_atomic


def main(
    name: Annotated[
        str | None, typer.Argument(help="PAPER/NUMBER, such as li2022/2; none: list all.")
    ] = None,
    overrides: Overrides = None,
    only_missing: OnlyMissing = False,
    run: MakeRuns = False,
    out: OutFile = None,
    seeds: Seeds = None,
    folders: Records = None,
) -> None:
    """A paper's table next to your runs, and the missing ones: dpft table li2022/2 scale=laptop

    Without a name it lists every table. Each cell: printed number; ours with its deviation over
    seeds; difference, verdict and marks; docs/how-to/tables.md defines them.
    """
    from dpft.reproduce.tables.render import SUFFIXES, as_text_table, text_of

    request = Request.parse(overrides or (), seeds, folders)
    if out is not None and out.suffix not in SUFFIXES:
        raise ConfigError(f"--out is '{out}'; expected a file ending in {', '.join(SUFFIXES)}")
    if name is None or "/" not in name:
        _list(name)
        return
    table = papers.load(*name.split("/", 1))
    index = request.index()
    plan = make_plan(table, request.scale, request.seeds, request.settings)
    lacking = missing(plan, index)
    if only_missing:
        print_missing(lacking)
        warn_left_out(index.damaged)
        return
    # Before the runs are made, since Hydra is set up here. The laptop's runs have other epsilons.
    printed = epsilons(table, plan.rows) if request.scale == "paper" else ()
    failed: typer.Exit | None = None
    if run:
        stem = f"tables/{table.paper}-{table.number}"
        failed = request.make(stem, lacking)
        index = request.index(made=True)
    filled = fill(plan, index, printed)
    if out is None:
        as_text_table(filled).show(make_console())
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, text_of(filled, out.suffix))
        echo(f"{out}", err=True)
    for remark in filled.remarks:
        warn(f"record: {remark}", err=True)
    have, possible = filled.numbers
    echo(f"{have} of {possible} cells have a number ({index.looked})", err=True)
    request.print_lacking("table", table.name, len(missing(plan, index)))
    if failed is not None:
        raise failed


def _list(paper: str | None) -> None:
    """Print the name and title of every table, or of those of a paper."""
    known = papers.names()
    names = [name for name in known if paper is None or name.startswith(f"{paper}/")]
    if not names:
        some = dict.fromkeys([*(name.partition("/")[0] for name in known), *known])
        raise ConfigError(
            f"there is no table {paper!r}{suggestion(str(paper), some)}; type dpft table for all"
        )
    tables = [papers.load(*name.split("/", 1)) for name in names]
    TextTable(("table", "title"), [(one.name, one.title) for one in tables]).show(make_console())
    echo("type dpft table NAME for one")
