"""``dpft figure``: a paper's figure, computed or from one's own runs and benchmarks."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dpft.cli.options import Benches, MakeRuns, OnlyMissing, Overrides, Records, Seeds
from dpft.cli.output import make_console, warn, warn_left_out
from dpft.cli.paper_runs import Request, print_missing
from dpft.config.errors import ConfigError
from dpft.report.terminal import echo
from dpft.report.text_table import TextTable
from dpft.reproduce.bench.documents import read_benches
from dpft.reproduce.figures.catalog import FigureKind, Inputs, figures, load, plan_tables
from dpft.reproduce.tables.record_index import Index


def main(
    name: Annotated[
        str | None, typer.Argument(help="PAPER/NUMBER, such as li2022/6; none: list all.")
    ] = None,
    overrides: Overrides = None,
    only_missing: OnlyMissing = False,
    run: MakeRuns = False,
    out: Annotated[Path, typer.Option(help="Folder of the files.")] = Path("runs/figures"),
    seeds: Seeds = None,
    folders: Records = None,
    benches: Benches = None,
) -> None:
    """A paper's figure, as PNG and SVG with its data as CSV: dpft figure li2022/6

    Without a name it lists every figure and what it is made from: computed, from recorded runs,
    from files of dpft bench, or from what a run keeps under private/ (--runs may name the run).
    Files made of noiseless data go to private/ below the folder. docs/how-to/tables.md.
    """
    request = Request.parse(overrides or (), seeds, folders)
    files, damaged = read_benches(benches or None)
    if name is None:
        rows = [(one.name, one.kind, one.title) for one in figures().values()]
        TextTable(("figure", "made from", "title"), rows).show(make_console())
        echo("type dpft figure NAME for one; computed figures need no run")
        return
    figure = load(name)
    if figure.kind is FigureKind.COMPUTED and (extra := request.settings):
        raise ConfigError(f"got {' '.join(extra)}, but {name} is computed from the paper alone")
    private = tuple(one for one in request.folders if (one / "private").is_dir())
    inputs = Inputs(request.scale, runs=private, benches=files)
    index = Index()
    if figure.tables:
        index = request.index()
        planned = plan_tables(figure, request.scale, index, request.seeds, request.settings)
        inputs = replace(inputs, tables=planned)
    if only_missing:
        print_missing(inputs.missing)
        return
    failed: typer.Exit | None = None
    if run:
        failed = request.make(f"figures/{figure.stem}", inputs.missing)
        index = request.index(made=True)
        inputs = replace(inputs, tables=tuple(replace(one, index=index) for one in inputs.tables))
    warn_left_out((*index.damaged, *damaged))
    from dpft.reproduce.figures.draw import build, save  # and torch, which takes seconds
    from dpft.reproduce.figures.private import WARNING

    content = build(figure, inputs)
    lacking = len(inputs.missing)
    if not any(panel.points for panel in content.panels):
        typed = f"dpft figure {name} scale={request.scale} --run"
        raise ConfigError(
            f"{name} has nothing to draw: no number is printed, and none of its {lacking} runs is "
            f"recorded; type {typed} to make them"
        )
    for path in save(figure, content, out / "private" if figure.private else out):
        echo(str(path))
    if figure.private:
        warn(f"warning: {WARNING}", err=True)
    request.print_lacking("figure", name, lacking)
    if failed is not None:
        raise failed
