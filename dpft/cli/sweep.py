"""``dpft sweep``: many runs by Hydra's multirun, checked beforehand, shown, and safe to kill."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from dpft.cli import options
from dpft.cli.output import warn
from dpft.config.errors import ConfigError, DpftError
from dpft.parallel.launch import check_launcher
from dpft.report.console import Console
from dpft.report.cost import remarks
from dpft.report.terminal import echo, secho
from dpft.runs.finished import is_intact
from dpft.runs.ledger import LedgerContents, read_ledger
from dpft.runs.record import read_record
from dpft.sweep.folder import FAILED, SweepFolder, default_name, folder_of, latest_attempt
from dpft.sweep.points import (
    SweepPlan,
    chooses_by_test,
    labels,
    make_plan,
    parse_arguments,
    read_list,
)
from dpft.sweep.process import run_points
from dpft.sweep.state import DONE, Display, PointState, States, as_table, summary


def main(
    arguments: options.Settings = None,
    file: Annotated[
        Path | None, typer.Option("--list", help="A file of points, one line of settings each.")
    ] = None,
    name: options.SweepName = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and show the points; run nothing.")
    ] = False,
    select: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="Choose the best private run by this score, at a stated privacy cost: a random "
            "number of secret trials (Papernot and Steinke 2022), of which one is released.",
        ),
    ] = None,
    trials: Annotated[
        float, typer.Option(min=1, max=1e6, help="With --select: the mean number of trials.")
    ] = 10.0,
) -> None:
    """Many runs, with a live table: dpft sweep task=e2e eps=3,8 seed=1,2,3

    Takes the arguments of dpft train -m: several values with commas, Hydra's sweepers and
    launchers. All points are checked before the first one runs. The same command resumes a sweep
    that was interrupted. docs/how-to/sweeps.md explains --select.
    """
    if select is not None:
        if file is not None or dry_run:
            raise ConfigError("--select does not go with --list or --dry-run")
        from dpft.cli.select import main as choose

        choose(arguments or (), metric=select, mean=trials, name=name)
        return
    if not arguments and file is None:
        raise ConfigError("got nothing to sweep; type dpft sweep task=e2e eps=3,8 seed=1,2,3")
    run_sweep(arguments or (), file=file, name=name, dry_run=dry_run)


def run_sweep(
    arguments: Sequence[str],
    *,
    file: Path | None = None,
    name: str | None = None,
    dry_run: bool = False,
) -> None:
    """Run a sweep, or show what it would run."""
    check_launcher()
    parsed = parse_arguments(arguments)
    lines = () if file is None else read_list(file)
    plan = make_plan(parsed, lines)
    folder = folder_of(plan.runs_dir, name or default_name(parsed, lines))
    if plan.merged:
        echo(f"merged {plan.merged} points with the settings of an earlier one", err=True)
    if chooses_by_test(plan):
        warn(
            "runs that differ in what one tunes are scored on the test split: the best of them is "
            "no fair test score. To choose, type decode.split=dev, then dpft score RUN "
            "decode.split=test for the chosen one (docs/how-to/sweeps.md)",
            err=True,
        )
    if dry_run:
        _show_plan(plan, folder)
        return
    with folder.lock():
        folder.describe(parsed, lines, plan)
        states = States(folder)
        echo(f"sweep {folder.path}; its output goes to {folder.log}", err=True)
        try:
            with Display() as display:
                status = run_points(parsed, lines, folder, lambda: display.show(states.rows()))
        finally:
            rows = states.rows()
            if rows:
                Console().print(as_table(rows, summary(rows)))
        failures = [f"{row.label}: {row.error}" for row in rows if row.error is not None]
        # Impossible settings, which belong to no run.
        stray = [
            e for e in latest_attempt(folder.journal.read()) if e.event == FAILED and not e.digest
        ]
        failures += [f"{' '.join(e.overrides)}: {e.error or ''}" for e in stray]
        for failure in failures:
            secho(failure, fg=typer.colors.RED, err=True)
        if status and not failures:
            said = f"Hydra ended with status {status}; see {folder.log}"
            secho(said, fg=typer.colors.RED, err=True)
        _show_cost(rows, states.searched)
        done = all(row.state == DONE for row in rows)
        if not done:
            echo("not every run is done; the same command runs the others", err=True)
        if status or failures or not done:
            raise typer.Exit(1)


def _show_plan(plan: SweepPlan, folder: SweepFolder) -> None:
    if plan.points is None:
        echo(f"{folder.path}: the sweeper chooses the points; the settings are valid")
        return
    done = [is_intact(point.path, point.digest) for point in plan.points]
    names = labels(point.overrides for point in plan.points)
    for point, label, finished in zip(plan.points, names, done, strict=True):
        echo(f"{label}  {point.path}{'  done' if finished else ''}")
    echo(f"{folder.path}: {len(plan.points)} points, {sum(done)} done")


def _show_cost(rows: Sequence[PointState], searched: bool) -> None:
    """Print the joint cost of the private runs that are done, and what the others add to it."""
    private = [row for row in rows if row.point.private]
    records = []
    for path in (row.point.path for row in private if row.state == DONE):
        try:
            records.append(read_record(path))
        except DpftError as error:
            echo(f"left out of the total: {error}", err=True)
    started: dict[str, LedgerContents | None] = {}
    for row in private:
        if row.state != DONE and (row.step or row.epsilon):
            started[row.label] = None  # no bound is known on what a damaged ledger spent
            with suppress(DpftError):
                started[row.label] = read_ledger(row.point.path / "ledger.jsonl")
    for text in remarks(records, searched, started):
        warn(f"\n{text}")
