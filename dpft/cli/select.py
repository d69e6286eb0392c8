"""``dpft select``: hyperparameters chosen on private data, with the choice accounted for."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpft.cli import options, sweep
from dpft.cli.output import warn
from dpft.config.errors import ConfigError
from dpft.config.overrides import override
from dpft.report.terminal import echo, secho
from dpft.runs.ledger import read_ledger
from dpft.sweep.arguments import ParsedOverrides, parse_arguments
from dpft.sweep.folder import checked_name, default_name
from dpft.sweep.points import make_plan

if TYPE_CHECKING:
    from dpft.sweep.selection import Selection


def main(
    arguments: options.Settings = None,
    *,
    metric: Annotated[str, typer.Option(help="The score that decides, such as BLEU.")],
    mean: Annotated[float, typer.Option("--trials", help="Mean of the number of runs.")] = 10.0,
    shape: Annotated[
        float,
        typer.Option(help="Of its distribution: 1 geometric, 0 logarithmic, inf Poisson."),
    ] = 1.0,
    lowest: Annotated[bool, typer.Option("--lowest", help="The lowest score is the best.")] = False,
    name: options.SweepName = None,
) -> None:
    """Choose settings on private data, accounted: dpft select optim.lr=1e-3,4e-3 --metric BLEU

    Runs a random number of private trials with settings drawn from those given, and releases the
    best, whose record states the price of the choice (Papernot & Steinke 2022).
    docs/how-to/sweeps.md explains it.
    """
    from dpft.privacy.accounting.selection import Trials
    from dpft.privacy.rounding import up
    from dpft.sweep.release import release
    from dpft.sweep.selection import Candidate, Selection, check, draw, price
    from dpft.sweep.splits import remark
    from dpft.tasks import load_task
    from dpft.tasks.scores import check_metric, lower_is_better, lower_ones
    from dpft.training.mechanisms import make_mechanism

    try:
        trials = Trials(mean, shape)
    except ValueError as error:
        raise ConfigError(f"{error}: --trials and --shape") from error
    parsed = parse_arguments(arguments or ())
    plan = make_plan(parsed)
    if plan.points is None:
        raise ConfigError("a sweeper that chooses by scores is no private selection; give values")
    candidates = [
        Candidate(point.overrides, run) for point, run in zip(plan.points, plan.runs, strict=True)
    ]
    check(candidates)
    first = plan.runs[0]
    task = load_task(first.task)
    _check_direction(metric, lowest, lower_is_better(metric, {"lower": lower_ones(task)}))
    check_metric(metric, task, first.decode.split)
    warning = remark(plan.runs)
    if warning is not None:
        warn(warning, err=True)
    folder = plan.runs_dir / "selections" / checked_name(name or default_name(parsed, ()))
    selection = Selection(folder)
    with selection.lock():
        selection.describe(candidates, trials, metric, lowest)
        lines = draw(selection.key(), candidates, trials)
        if selection.chosen.exists():
            echo("this selection has released its run before; nothing is run again", err=True)
            _show(selection, _released(selection), metric)
            return
        if not lines:
            echo(
                f"{folder}: the number of trials was drawn as zero, and nothing is released. The "
                "same command draws the same; the same candidates under another --name are a "
                "second selection, whose price adds to the price of this one"
            )
            return
        paths = _run_trials(selection, parsed, lines, metric)
        best, record, size = _best(selection, paths, metric, lowest)
        mechanisms = [make_mechanism(candidate.run, size) for candidate in candidates]
        chosen = release(
            selection,
            best,
            record,
            metric=metric,
            lowest=lowest,
            trials=trials,
            mechanisms=mechanisms,
        )
    _show(selection, chosen, metric)
    each, total, _ = price(mechanisms, trials)
    warn(f"  each trial spent at most epsilon {up(each)}; the choice makes it {up(total)}")


def _released(selection: Selection) -> dict[str, Any]:
    """The record of the run that was released before.

    Raises:
        ConfigError: it is not what was released.
    """
    from dpft.runs.finished import RECORD, damages
    from dpft.runs.record import read_record

    if damaged := damages(selection.chosen, (RECORD,)):
        raise ConfigError(
            f"{selection.chosen}: {damaged[0]}; expected it as it was released, which is not done "
            "again: put the file back from a copy"
        )
    return read_record(selection.chosen)


def _check_direction(metric: str, lowest: bool, lower: bool) -> None:
    if lower is not lowest:
        better, released, advice = "lower", "highest", "type --lowest"
        if lowest:
            better, released, advice = "higher", "lowest", "leave --lowest out"
        raise ConfigError(
            f"{metric} is better the {better} it is, and the {released} would be released: {advice}"
        )


def _run_trials(
    selection: Selection, parsed: ParsedOverrides, lines: Sequence[Sequence[str]], metric: str
) -> list[Path]:
    """Run what was drawn as a sweep below ``private/``; the trials' folders.

    Raises:
        typer.Exit: not every trial is done.
    """
    from dpft.runs.atomic import write_atomic

    file = selection.private / "trials.txt"
    write_atomic(file, "".join(f"{shlex.join(line)}\n" for line in lines), mode=0o600)
    own = [word for word in parsed.overrides if word.startswith(("hydra/", "hydra."))]
    typed = [*own, override("runs_dir", str(selection.trials)), override("sweep.metric", metric)]
    if parsed.config_dir is not None:
        typed += ["--config-dir", str(parsed.config_dir)]
    secho("The number of trials is secret, and so is every trial but the best", err=True)
    with _owner_only_files():
        sweep.run_sweep(typed, file=file, name="trials", secret=True)
    points = make_plan(parse_arguments(typed), lines).points
    assert points is not None
    assert all(selection.trials in point.path.parents for point in points)
    return [point.path for point in points]


def _best(
    selection: Selection, paths: Sequence[Path], metric: str, lowest: bool
) -> tuple[Path, dict[str, Any], int]:
    """Folder and record of the best trial, and on how many records all were trained.

    Raises:
        ConfigError: the trials' numbers of records differ, or no trial has a score.
    """
    from dpft.runs.record import read_record
    from dpft.tasks.scores import score

    # A trial without a record diverged: its ledger holds the number of records.
    records = {p: read_record(p) if (p / "record.json").exists() else None for p in paths}
    ledgers = {p: read_ledger(p / "ledger.jsonl") for p in paths if not records[p]}
    if any(
        record["mechanism"].get("repeated") if record else ledgers[p].repeated
        for p, record in records.items()
    ):
        raise ConfigError(
            f"{selection.trials}: a trial went on with other devices and repeated steps, so that "
            "it spent more than its candidate; expected no such trial, since no price holds then. "
            "Give another --name, whose price adds to what was spent here"
        )
    sizes = {
        int((record or ledgers[p].header)["mechanism"]["dataset_size"])
        for p, record in records.items()
    }
    if len(sizes) > 1:
        listed = " and ".join(f"{size:,}" for size in sorted(sizes))
        raise ConfigError(
            f"{selection.trials}: trials were trained on {listed} records; expected as "
            "many for all: the data changed meanwhile, and no price holds. Put the data back, and "
            "give another --name, whose price adds to what was spent here"
        )
    # No number is the worst score: that follows from what the trial releases, as any score does.
    scored = [
        (path, record, score(record, metric)[1]) for path, record in records.items() if record
    ]
    ranked = [(value, i) for i, (_, _, value) in enumerate(scored) if value is not None]
    if not ranked:
        raise ConfigError(f"no trial has a finite {metric}; nothing is released")
    path, record, _ = scored[(min if lowest else max)(ranked)[1]]
    return path, record, sizes.pop()


@contextmanager
def _owner_only_files() -> Iterator[None]:
    """What is written meanwhile, by the processes that are started too, is its owner's alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _show(selection: Selection, chosen: Mapping[str, Any], metric: str) -> None:
    """What was released, at which price, and what the price leaves out."""
    from dpft.report.comparison import print_guarantee
    from dpft.tasks.metrics.shown import figure
    from dpft.tasks.scores import score

    section = chosen["scores"][chosen["config"]["decode"]["split"]]
    value = figure(metric, score(chosen, metric)[1], section.get("signature"))
    echo(f"{selection.chosen}: {metric} {value}")
    print_guarantee(chosen, "  ")
