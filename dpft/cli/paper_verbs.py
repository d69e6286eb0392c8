"""Tables, figures and claims of papers: printed numbers next to recorded runs, and missing runs."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self

import typer

from dpft.cli.options import Benches, MakeRuns, OnlyMissing, OutFile, Overrides, Records, Seeds
from dpft.config.errors import ConfigError, SettingError, one_of, suggestion
from dpft.report.console import make_console
from dpft.report.terminal import echo, warn, warn_left_out
from dpft.report.text_table import TextTable
from dpft.reproduce import papers
from dpft.reproduce.bench.documents import read_benches
from dpft.reproduce.figures.catalog import FigureKind, Inputs, figures, load, plan_tables
from dpft.reproduce.tables.cells import Missing, epsilons, fill, missing
from dpft.reproduce.tables.planned import SCALES, make_plan
from dpft.reproduce.tables.record_index import FOLDERS, Index, make_index, usual_folders
from dpft.runs.atomic import write_atomic


@dataclass(frozen=True)
class Request:
    """The words after the name of a table or figure, as `make_plan` and `make_index` take them.

    ``launcher`` has words for Hydra, of the sweep that makes the missing runs.
    """

    scale: str
    seeds: list[int] | None
    settings: list[str]
    launcher: list[str]
    folders: Sequence[Path]

    @classmethod
    def parse(cls, words: Sequence[str], seeds: str | None, folders: Sequence[Path] | None) -> Self:
        """Read the words and the options."""
        scale = next((w.partition("=")[2] for w in words if w.startswith("scale=")), "paper")
        one_of("scale", scale, SCALES)
        if seeds is not None and not re.fullmatch(r"\d+(,\d+)*", seeds):
            raise SettingError("--seeds", seeds, "numbers with commas, as in --seeds 0,1,2")
        numbers = None if seeds is None else [*dict.fromkeys(map(int, seeds.split(",")))]
        others = [word for word in words if not word.startswith("scale=")]
        launcher = [word for word in others if word.lstrip("+~").startswith(("hydra/", "hydra."))]
        settings = [word for word in others if word not in launcher]
        return cls(scale, numbers, settings, launcher, folders or ())

    @property
    def runs_dir(self) -> Path:
        """The folder of new runs."""
        given = [w.partition("=")[2] for w in self.settings if w.startswith("runs_dir=")]
        return Path(given[-1].strip("'\"") if given else "runs")

    def index(self, *, made: bool = False) -> Index:
        """Return the records in the folders, with those that were just ``made`` in a new one."""
        own = [self.runs_dir] if self.runs_dir.is_dir() else []
        if not self.folders:
            return make_index(dict.fromkeys([*usual_folders(FOLDERS), *own]))
        there = [one for one in self.folders if own or one != self.runs_dir]  # or it will be
        return make_index([*there, *(own if made else [])])

    def make(self, stem: str, missing: Sequence[Missing]) -> typer.Exit | None:
        """Make the missing runs; a sweep that did not finish is returned, to be raised at the end.

        Their settings are written to a file of that ``stem`` below the runs' folder.
        """
        if not missing:
            echo("nothing is missing", err=True)
            return None
        from dpft.cli.sweep import run_sweep

        file = self.runs_dir / f"{stem}-{self.scale}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{one.line}\n" for one in missing), encoding="utf-8")
        echo(f"{len(missing)} runs are missing; their settings are in {file}", err=True)
        words = [*self.launcher, *(w for w in self.settings if w.startswith("runs_dir="))]
        try:
            run_sweep(words, file=file, chooses=False)
        except typer.Exit as stopped:
            return stopped
        return None

    def print_lacking(self, verb: str, name: str, count: int) -> None:
        """Print how many runs are missing, if any, and how to name or make them."""
        if count:
            typed = shlex.join(["dpft", verb, name, f"scale={self.scale}"])
            options = "--missing shows their commands, --run makes them"
            echo(f"{count} runs are missing: {typed} {options}", err=True)


def print_missing(missing: Sequence[Missing]) -> None:
    """Print the commands of the missing runs."""
    for one in missing:
        echo(f"dpft train {one.line}")
    said = f"{len(missing)} runs are missing; --run makes them"
    echo(said if missing else "nothing is missing", err=True)


def table_verb(
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


def figure_verb(
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


def claims_verb(
    name: Annotated[
        str | None, typer.Argument(help="A paper, such as li2022, or a claim, such as li2022/c05.")
    ] = None,
    runs: Records = None,
    benches: Benches = None,
    summary: Annotated[
        bool, typer.Option("--summary", help="Only how many claims have which word.")
    ] = False,
) -> None:
    """The papers' headline claims: do they hold? By print and by your runs: dpft claims li2022

    Five paired seeds confirm or contradict a claim, three show a tendency, one is only consistent
    with it or not. With a claim's name: every number. docs/how-to/tables.md has the rule.
    """
    from dpft.reproduce.claims.claim import load as load_claims

    claims = load_claims(name)
    from dpft.reproduce.claims import show
    from dpft.reproduce.claims.evaluate import Evidence, evaluate

    index = make_index(runs or None)
    files, damaged = read_benches(benches or None)
    evidence = Evidence(index, files)
    results = [evaluate(one, evidence) for one in claims]
    if summary:
        show.summary_of(results).show(make_console())
    elif name is not None and "/" in name:
        show.table_of(results[0]).show(make_console())
    else:
        show.list_of(results).show(make_console())
    echo(index.looked, err=True)
    warn_left_out((*index.damaged, *damaged))
