"""``dpft sweep``: many runs by Hydra's multirun, checked beforehand, shown, and safe to kill."""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpft.cli import options
from dpft.cli.output import warn
from dpft.config.errors import ConfigError, DpftError
from dpft.config.overrides import override, setting_of
from dpft.parallel.launch import check_launcher, launched
from dpft.report.console import Console
from dpft.report.terminal import echo, secho
from dpft.runs.folders import check_no_trial
from dpft.sweep import splits
from dpft.sweep.arguments import ParsedOverrides, parse_arguments, read_list
from dpft.sweep.folder import SweepFolder, default_name, folder_of
from dpft.sweep.journal import BEGUN, Event, Journal
from dpft.sweep.points import SweepPlan, labels, make_plan
from dpft.sweep.process import Multirun
from dpft.sweep.slurm import Queue
from dpft.sweep.state import DONE, FAILED, RUNNING, WAITING, PointState, States
from dpft.sweep.table import Display, as_table, summary

if TYPE_CHECKING:
    from dpft.runs.ledger import LedgerContents

# Seconds between two looks at the runs.
_LOOK = 1.0
# Settings that say which sweep is shown, and by which score.
_WATCHED = ("runs_dir", "sweep.metric")
# Lines of Hydra's output that are shown if it ended in an error.
_LAST_LINES = 15


def main(
    arguments: options.Settings = None,
    file: Annotated[
        Path | None, typer.Option("--list", help="A file of points, one line of settings each.")
    ] = None,
    keep_going: options.KeepGoing = True,
    name: options.SweepName = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and show the points; run nothing.")
    ] = False,
    watch: Annotated[
        str | None, typer.Option(help="Only show a sweep that runs elsewhere: name or folder.")
    ] = None,
) -> None:
    """Many runs, with a live table: dpft sweep task=e2e eps=3,8 seed=1,2,3

    Takes what dpft train -m takes: several values with commas, Hydra's sweepers and launchers.
    Every point is checked before the first runs. The same command goes on after a kill.
    """
    if watch is not None:
        _watch(parse_arguments(arguments or ()), watch)
        return
    if not arguments and file is None:
        raise ConfigError(
            "got nothing to sweep; expected settings with several values: type dpft sweep task=e2e "
            "eps=3,8 seed=1,2,3, or dpft sweep --list FILE"
        )
    run_sweep(arguments or (), file=file, keep_going=keep_going, name=name, dry_run=dry_run)


def run_sweep(
    arguments: Sequence[str],
    *,
    file: Path | None = None,
    keep_going: bool = True,
    name: str | None = None,
    dry_run: bool = False,
    secret: bool = False,
    chooses: bool = True,
) -> None:
    """Run a sweep, or show what it would run.

    Args:
        arguments: overrides and sweeps over them, as for ``dpft train -m``.
        file: a list of points, one line of overrides each.
        keep_going: whether the other points run after one failed.
        name: the sweep's folder below ``runs_dir/sweeps``; None: made of what was typed.
        dry_run: only check and show the points.
        secret: the runs are trials of a private selection: neither their scores are shown, nor what
            they cost together, nor, where output may go to a file, how many there are or failed.
        chooses: the best may be chosen, unlike among the runs of a table, whose settings are fixed.

    Raises:
        ConfigError: before anything runs, if any point could not.
        typer.Exit: with status 1, if not every run is done in the end.
    """
    check_launcher()
    if launched() > 1:
        raise ConfigError(
            f"torchrun started a sweep as {launched()} processes; expected one, whose jobs start "
            "their ranks: type dpft sweep ... ranks=N, without torchrun"
        )
    parsed = parse_arguments(arguments)
    lines = () if file is None else read_list(file)
    plan = make_plan(parsed, lines)
    folder = folder_of(plan.runs_dir, name or default_name(parsed, lines))
    if plan.merged:
        echo(f"merged {plan.merged} points with the settings of an earlier one", err=True)
    # Nothing may be said of the settings of secret trials; `dpft select` warns of all candidates.
    warning = splits.remark(plan.runs, plan.searched) if chooses and not secret else None
    if warning is not None:
        warn(warning, err=True)
    if dry_run:
        _show_plan(plan, folder)
        return
    with folder.lock():
        folder.describe(parsed, lines, plan)
        _run(_multirun_arguments(parsed, lines, folder, keep_going), folder, secret)


def _run(arguments: Sequence[str], folder: SweepFolder, secret: bool) -> None:
    states = States(folder)
    Journal(folder.journal).add(Event(BEGUN))
    echo(f"sweep {folder.path}; its output goes to {folder.log}", err=True)
    begin = folder.log.stat().st_size if folder.log.exists() else 0
    status = None
    queue, lost = Queue(folder.submitted), list[str]()
    try:
        with Multirun(arguments, folder.log) as process, Display(lines=not secret) as display:
            while status is None and not lost:
                display.show(_visible_rows(states, secret))
                status, lost = process.wait(_LOOK), queue.lost()
            display.show(_visible_rows(states, secret))
    finally:
        rows, console = _visible_rows(states, secret), Console()
        if rows and (console.is_terminal or not secret):
            console.print(as_table(rows, summary(rows)))
    failures = [f"{row.label}: {row.error}" for row in rows if row.error is not None]
    failures += [f"{' '.join(e.overrides)}: {e.error or ''}" for e in states.stray()]
    if secret and not Console(stderr=True).is_terminal:
        if status or failures:  # what failed tells settings, and how many trials there are at least
            _error(f"a trial failed; why is secret as well: see {folder.log}")
    else:
        for failure in failures:
            _error(failure)
        if status and not failures:
            with folder.log.open("rb") as log:
                log.seek(begin)
                printed = log.read().decode(errors="replace").splitlines()
            echo("\n".join(printed[-_LAST_LINES:]), err=True)
            _error(f"Hydra ended with status {status}; see {folder.log}")
    if lost:
        jobs = "" if secret else f" ({', '.join(lost)})"
        _error(
            f"Slurm knows the jobs{jobs} no longer, and they left no result: they were cancelled "
            f"or killed. What they printed: {folder.submitted}"
        )
    if not secret:
        former = [row for row in states.former() if row.point.private]
        _show_cost([*rows, *former], states.searched)
        if former:
            warn(
                "\nRuns that this sweep has begun before, with other settings by the same words, "
                f"are counted too: {'; '.join(row.label for row in former)}"
            )
    done = all(row.state == DONE for row in rows)
    if not done:
        echo("not every run is done; the same command goes on with the others", err=True)
    if status or failures or lost or not done:
        raise typer.Exit(1)


def _error(message: str) -> None:
    secho(message, fg=typer.colors.RED, err=True)


def _visible_rows(states: States, secret: bool) -> list[PointState]:
    """The rows; those of secret trials without scores, and one that diverged is done.

    The price of a selection is for one outcome. Who stops it because of a trial's score has made
    that score an outcome too; and to diverge is the worst of scores.
    """
    rows = states.rows()
    if not secret:
        return rows
    return [
        replace(row, score=None, state=DONE, error=None)
        if row.diverged
        else replace(row, score=None)
        for row in rows
    ]


def _multirun_arguments(
    parsed: ParsedOverrides, lines: Sequence[Sequence[str]], folder: SweepFolder, keep_going: bool
) -> list[str]:
    """What follows ``dpft train -m``; the list, as it was read and checked, is copied for it."""
    typed = [] if parsed.config_dir is None else ["--config-dir", str(parsed.config_dir)]
    path, hydra = folder.path.absolute(), folder.hydra.absolute()
    typed += [override("hydra.sweep.dir", str(hydra)), "hydra.sweep.subdir=."]
    typed += parsed.overrides
    typed += [override("sweep.folder", str(path)), override("sweep.keep_going", keep_going)]
    if lines:
        text = "".join(f"{shlex.join(line)}\n" for line in lines)
        folder.list.write_text(text, encoding="utf-8")
        typed.append(override("sweep.list", str(folder.list.absolute())))
        typed.append(f"sweep.point=range(0,{len(lines)})")
    return typed


def _show_plan(plan: SweepPlan, folder: SweepFolder) -> None:
    if plan.points is None:
        echo(f"{folder.path}: the sweeper chooses the points; the settings are valid")
        return
    from dpft.runs.finished import is_intact

    done = 0
    names = labels(point.overrides for point in plan.points)
    for point, label in zip(plan.points, names, strict=True):
        finished = is_intact(point.path, point.digest)
        done += finished
        echo(f"{label}  {point.path}{'  done' if finished else ''}")
    echo(f"{folder.path}: {len(plan.points)} points, {done} done")


def _show_cost(rows: Sequence[PointState], searched: bool) -> None:
    """What the runs cost together, if several are private and done, and what others add."""
    from dpft.report.cost import remarks
    from dpft.runs.record import read_record

    private = [row for row in rows if row.point.private]
    records = []
    for path in (row.point.path for row in private if row.state == DONE):
        try:
            records.append(read_record(path))
        except DpftError as error:
            echo(f"left out of the total: {error}", err=True)
    unfinished = [row for row in private if row.state != DONE and (row.step or row.epsilon)]
    begun = {row.label: _ledger(row) for row in unfinished}
    for remark in remarks(records, searched, begun):
        warn(f"\n{remark}")


def _ledger(row: PointState) -> LedgerContents | None:
    """None if it is damaged: what was spent then has no bound that is known."""
    from dpft.runs.ledger import read_ledger

    try:
        ledger = read_ledger(row.point.path / "ledger.jsonl")
    except DpftError:
        return None
    if row.epsilon is not None and math.isfinite(row.epsilon):
        return ledger
    return replace(ledger, entries=[*ledger.entries, {}])  # its last line does not tell


def _watch(parsed: ParsedOverrides, name: str) -> None:
    typed = dict(word.split("=", 1) for word in parsed.overrides if "=" in word)
    if others := [word for word in parsed.overrides if setting_of(word) not in _WATCHED]:
        raise ConfigError(
            f"got {' '.join(others)} beside --watch, which shows a sweep as it was begun; expected "
            f"{' or '.join(f'{one}=...' for one in _WATCHED)} alone: leave it out"
        )
    check_no_trial(Path(name))
    folder = SweepFolder(Path(name))
    if not folder.description.exists():
        folder = folder_of(Path(typed.get("runs_dir") or "runs"), Path(name).name)
        if not folder.description.exists():
            raise ConfigError(
                f"there is no sweep {name!r}, as a folder or as {folder.path}; type runs_dir=DIR "
                "if its runs lie elsewhere"
            )
    check_no_trial(folder.path)
    states = States(folder, typed.get("sweep.metric"))
    console = Console()
    rows = states.rows()
    if console.is_terminal:
        # Some run, some wait, or none is there yet and the first may be about to begin.
        with contextlib.suppress(KeyboardInterrupt), Display() as display:
            while not rows or any(row.state in (RUNNING, WAITING) for row in rows):
                display.show(rows)
                time.sleep(_LOOK)
                rows = states.rows()
        rows = states.rows()
    console.print(as_table(rows, summary(rows)))
    for row in rows:
        if row.state == FAILED:
            _error(f"{row.label}: {row.error}")
