"""``dpft sweep --select``: settings chosen on private data, with the choice accounted for."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from dpft.cli.output import warn
from dpft.config.errors import ConfigError
from dpft.config.overrides import override
from dpft.parallel.launch import check_launcher
from dpft.report.terminal import echo, secho
from dpft.runs.directory import DirectoryLock
from dpft.sweep.points import ParsedOverrides, make_plan, parse_arguments
from dpft.sweep.process import run_points
from dpft.sweep.selection.trials import Selection, Trials, check, draw
from dpft.sweep.state import DONE, States
from dpft.sweep.sweep_folder import checked_name, default_name, folder_of


def main(
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
    from dpft.sweep.selection.release import best, price, release
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
        rule: dict[str, Any] = {"metric": metric, "lowest": lowest, "trials": trials}
        chosen = release(selection, trial, record, **rule, mechanisms=mechanisms)
    _show(selection, chosen, metric)
    each, total, delta = price(mechanisms, trials)
    spent, stated = up(each.epsilon(1, delta)), up(total.epsilon(1, delta))
    warn(f"  each trial spent at most epsilon {spent}; the choice makes it {stated}")


def run_trials(
    selection: Selection, parsed: ParsedOverrides, lines: Sequence[Sequence[str]]
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


def _show(selection: Selection, chosen: dict[str, Any], metric: str) -> None:
    """Print what was released, at which price, and what the price leaves out."""
    from dpft.report.comparison import print_guarantee
    from dpft.tasks.scores import figure, score

    section = chosen["scores"][chosen["config"]["decode"]["split"]]
    value = figure(metric, score(chosen, metric)[1], section.get("signature"))
    echo(f"{selection.chosen}: {metric} {value}")
    print_guarantee(chosen, "  ")
