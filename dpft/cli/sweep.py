"""Many runs by Hydra's multirun, checked beforehand, shown, and safe to kill; or the best of them.

A choice among private runs (``--select``) is accounted for.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpft.cli import options
from dpft.config.errors import ConfigError, DpftError
from dpft.config.overrides import override
from dpft.parallel.launch import check_launcher
from dpft.report.console import Console
from dpft.report.cost import remarks
from dpft.report.terminal import clock, echo, secho, warn
from dpft.runs.directory import DirectoryLock
from dpft.runs.folders import is_intact
from dpft.runs.ledger import LedgerContents, read_ledger
from dpft.runs.record import read_record
from dpft.sweep.points import (
    ParsedOverrides,
    SweepPlan,
    chooses_by_test,
    labels,
    make_plan,
    parse_arguments,
    read_list,
)
from dpft.sweep.process import run_points
from dpft.sweep.state import DONE, WAITING, PointState, States, as_table
from dpft.sweep.sweep_folder import SweepFolder, checked_name, default_name, folder_of

if TYPE_CHECKING:
    from dpft.sweep.selection import Selection


def sweep_verb(
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
    """Many runs from one command: dpft sweep task=e2e eps=3,8 seed=1,2,3

    Takes the arguments of dpft train -m: several values with commas, and Hydra's launchers. All
    points are checked before the first one runs. The same command resumes a sweep that was
    interrupted. docs/how-to/sweeps.md explains --select.
    """
    if select is not None:
        if file is not None or dry_run:
            raise ConfigError("--select does not go with --list or --dry-run")
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
    chooses: bool = True,
) -> None:
    """Run a sweep, or show what it would run; ``chooses``: the best run may be taken."""
    check_launcher()
    parsed = parse_arguments(arguments)
    lines = () if file is None else read_list(file)
    plan = make_plan(parsed, lines)
    folder = folder_of(plan.runs_dir, name or default_name(parsed, lines))
    if plan.merged:
        echo(f"merged {plan.merged} points with the settings of an earlier one", err=True)
    if chooses and chooses_by_test(plan):
        warn(
            "runs that differ in what one tunes are scored on the test split: the best of them is "
            "no fair test score. To choose, type decode.split=dev, then dpft score RUN "
            "decode.split=test for the chosen one (docs/how-to/sweeps.md)",
            err=True,
        )
    if dry_run:
        _show_plan(plan, folder)
        return
    with DirectoryLock(folder.path):
        folder.describe(parsed, lines, plan)
        states = States(folder)
        echo(f"sweep {folder.path}; its output goes to {folder.log}", err=True)
        printed: dict[str, str] = {}
        start, before = time.monotonic(), sum(row.state == DONE for row in states.rows())

        def look() -> None:
            rows = states.rows()
            done = sum(row.state == DONE for row in rows)
            for row in rows:
                if row.state != printed.get(row.point.digest, WAITING):
                    printed[row.point.digest] = row.state
                    left = ""
                    if row.state == DONE and before < done < len(rows):
                        each = (time.monotonic() - start) / (done - before)
                        left = f", about {clock(each * (len(rows) - done))} left"
                    echo(f"[{done}/{len(rows)} done] {row.label}: {row.state}{left}", err=True)
            if folder.log.exists():  # its last line says how far the run is
                with folder.log.open("rb") as log:  # its end, since it is read each second
                    log.seek(max(0, folder.log.stat().st_size - 4096))
                    live.update(log.read().decode("utf-8", "replace").strip().rpartition("\n")[2])

        try:
            with Console(stderr=True).status("starting") as live:
                status = run_points(parsed, lines, folder, look)
        finally:
            rows = states.rows()
            as_table(rows).show(Console())
        failures = [f"{row.label}: {row.error}" for row in rows if row.error is not None]
        if status and not failures:
            failures = [f"Hydra ended with status {status}; see {folder.log}"]
        for failure in failures:
            secho(failure, fg=typer.colors.RED, err=True)
        _show_cost(rows)
        done = all(row.state == DONE for row in rows)
        if not done:
            echo("not every run is done; the same command runs the others", err=True)
        if failures or not done:
            raise typer.Exit(1)


def _show_plan(plan: SweepPlan, folder: SweepFolder) -> None:
    done = [is_intact(point.path, point.digest) for point in plan.points]
    names = labels(point.overrides for point in plan.points)
    for point, label, finished in zip(plan.points, names, done, strict=True):
        echo(f"{label}  {point.path}{'  done' if finished else ''}")
    echo(f"{folder.path}: {len(plan.points)} points, {sum(done)} done")


def _show_cost(rows: Sequence[PointState]) -> None:
    """Print the joint cost of the private runs that are done, and what the others add to it."""
    records = []
    started: dict[str, LedgerContents | None] = {}
    for row in rows:
        ledger = row.point.path / "ledger.jsonl"
        try:
            if row.state == DONE and row.point.private:
                records.append(read_record(row.point.path))
            elif row.state != DONE and ledger.exists():
                contents = read_ledger(ledger)
                if contents.steps_spent:
                    started[row.label] = contents
        except DpftError as error:
            if row.state == DONE:
                echo(f"left out of the total: {error}", err=True)
            else:
                started[row.label] = None  # no bound is known on what a damaged ledger spent
    for text in remarks(records, started):
        warn(f"\n{text}")


def choose(
    arguments: Sequence[str], *, metric: str, mean: float = 10.0, name: str | None = None
) -> None:
    """Run a random number of private trials, and release the best with the price of the choice.

    The trials have settings drawn from those that were typed (Papernot and Steinke 2022).

    Args:
        arguments: as they are typed.
        metric: the score that decides, such as BLEU.
        mean: of the number of trials.
        name: of the selection's folder.
    """
    from dpft.config.offline import stay_offline_if_unreachable
    from dpft.privacy.rounding import up
    from dpft.runs.folders import RECORD, damages
    from dpft.runs.record import read_record
    from dpft.sweep.selection import Selection, Trials, best, check, draw, price, priced, release
    from dpft.tasks import load_task
    from dpft.tasks.scores import check_metric, lower_is_better
    from dpft.training.mechanisms import make_mechanism

    check_launcher()
    stay_offline_if_unreachable()
    trials, parsed = Trials(mean), parse_arguments(arguments)
    plan = make_plan(parsed)
    check(plan)
    task = load_task(plan.runs[0].task)
    check_metric(metric, task, plan.runs[0].decode.split)
    lowest = lower_is_better(metric, task.lower)
    name = checked_name(name or default_name(parsed, ()))
    selection = Selection(plan.runs_dir / "selections" / name)
    with selection.lock():
        selection.describe(plan.points, trials, metric)
        lines = draw(selection.key(), plan.points, trials)
        if selection.chosen.exists():
            if damaged := damages(selection.chosen, (RECORD,)):
                raise ConfigError(
                    f"{selection.chosen}: {damaged[0]}; expected it as it was released, which is "
                    "not done again: put the file back from a copy"
                )
            echo("this selection has released its run before; nothing is run again", err=True)
            _show(selection, read_record(selection.chosen), metric)
            return
        paths = run_trials(selection, parsed, lines)
        trial, record, size = best(paths, metric, lowest)
        mechanisms = [make_mechanism(run, size) for run in plan.runs]
        chosen = priced(record, metric, lowest, trials, mechanisms)
        release(selection, trial, chosen)
    _show(selection, chosen, metric)
    each, total, delta = price(mechanisms, trials)
    spent, stated = up(each.epsilon(1, delta)), up(total.epsilon(1, delta))
    warn(f"  each trial spent at most epsilon {spent}; the choice makes it {stated}")


def run_trials(
    selection: "Selection", parsed: ParsedOverrides, lines: Sequence[Sequence[str]]
) -> list[Path]:
    """Run what was drawn as a sweep below ``private/``; return the trials' folders."""
    own = [word for word in parsed.overrides if word.startswith(("hydra/", "hydra."))]
    typed = [*own, override("runs_dir", str(selection.trials))]
    if parsed.config_dir is not None:
        typed += ["--config-dir", str(parsed.config_dir)]
    trials = parse_arguments(typed)
    plan, folder = make_plan(trials, lines), folder_of(selection.trials, "trials")
    assert all(selection.trials in point.path.parents for point in plan.points)
    secho("The number of trials is secret, and so is every trial but the best", err=True)
    before = os.umask(0o077)  # started processes inherit it
    try:
        with DirectoryLock(folder.path):
            folder.describe(trials, lines, plan)
            status = run_points(trials, lines, folder)  # progress would tell how many there are
            rows = States(folder).rows()
    finally:
        os.umask(before)
    # A trial that diverged is done, with the worst of scores: it is one of the outcomes.
    if status or not all(row.state == DONE or row.diverged for row in rows):
        # What failed tells settings, and how many trials there are at least.
        secho(
            f"not every trial is done, for reasons that are secret too: see {folder.log}. The same "
            "command continues",
            fg=typer.colors.RED,
            err=True,
        )
        raise typer.Exit(1)
    return [point.path for point in plan.points]


def _show(selection: "Selection", chosen: dict[str, Any], metric: str) -> None:
    """Print what was released, at which price, and what the price leaves out."""
    from dpft.report.comparison import print_guarantee
    from dpft.tasks.scores import figure, score

    section = chosen["scores"][chosen["config"]["decode"]["split"]]
    value = figure(metric, score(chosen, metric)[1], section.get("signature"))
    echo(f"{selection.chosen}: {metric} {value}")
    print_guarantee(chosen, "  ")
