"""``dpft score``: official scores of a run's generations or of any predictions file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from dpft.cli.guard import alone
from dpft.cli.options import AsJson
from dpft.cli.output import warn
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.report.card import write_card
from dpft.report.terminal import echo
from dpft.tasks.metrics.shown import cautions, figure


def main(
    arguments: Annotated[
        list[str],
        typer.Argument(help="A run directory, or task=NAME predictions=FILE and overrides."),
    ],
    as_json: AsJson = False,
) -> None:
    """Score a run's generations, or any file: dpft score task=e2e predictions=FILE

    FILE has lines of {"prediction": "...", "references": ["...", ...]}.
    """
    alone("score")
    run = Path(arguments[0]) if len(arguments) == 1 and "=" not in arguments[0] else None
    if run is not None and run.suffix == ".jsonl" and run.is_file():
        raise ConfigError(
            f"{run} is a file of generations; expected a run directory, or type "
            f"task=NAME predictions={run}"
        )
    results = score_run(run) if run is not None else score_predictions(arguments)
    if as_json:
        only = next(iter(results.values())) if len(results) == 1 else results
        echo(json.dumps(only, indent=2))
        return
    from dpft import runs
    from dpft.report.comparison import print_pairs, print_remarks

    for name, section in results.items():
        pairs = [
            (metric, figure(metric, value, section.get("signature")), _beside(section, metric))
            for metric, value in section["metrics"].items()
        ]
        stopped = section.get("unfinished")
        ends = f", {stopped} of them stopped before their end" if stopped else ""
        print_pairs(f"{name}: {section['examples']} instances{ends}", pairs)
        for caution in cautions(section) if run is None else ():
            warn(caution)
    if run is not None:
        print_remarks(run, runs.read_record(run))


def _beside(section: Mapping[str, Any], metric: str) -> str:
    constant = section.get("baselines", {}).get(metric)
    return "" if constant is None else f"most frequent class everywhere: {constant:.4f}"


def score_predictions(arguments: Sequence[str]) -> dict[str, Any]:
    """Score ``predictions=FILE`` with the pipeline of ``task=NAME``."""
    files = [word for word in arguments if word.startswith("predictions=")]
    if len(files) != 1:
        raise ConfigError(
            f"got {len(files)} predictions=FILE; expected one, as in dpft score task=e2e "
            "predictions=FILE, or a run directory alone"
        )
    file = Path(files[0].removeprefix("predictions="))
    run = parse(compose([word for word in arguments if word not in files]))
    if run.resume is not None:
        raise ConfigError(
            f"got resume={run.resume} beside predictions=FILE, scored by task=NAME; leave "
            f"it out, or type dpft score {run.resume} for the run's own generations"
        )
    from dpft.tasks import load_task
    from dpft.training.predictions import read_predictions, score_file

    task, lines = load_task(run.task), read_predictions(file)
    again = sum(
        bool(one.source) and one.source == other.source and one.references != other.references
        for one, other in pairwise(lines)
    )
    if again:
        warn(
            f"note: {again} lines have the source of the line before and other references; if they "
            "are one instance, put its references into one line, as official scorers do",
            err=True,
        )
    return {file.name: score_file(task, file, lines)}


def score_run(path: Path) -> dict[str, Any]:
    """Score every generations file of a run again and update its record."""
    from dpft import runs
    from dpft.runs.folders import check_no_trial, generations_files, stored_config
    from dpft.tasks import load_task
    from dpft.training.trained import parse_stored

    check_no_trial(path)
    files = generations_files(path, runs.read_record(path))
    text, content = stored_config(path)
    run = parse_stored(path, content)
    if not files:
        raise ConfigError(
            f"{path} has no generations yet; type dpft decode {shlex.quote(str(path))}"
        )
    with runs.RunDirectory.open(path, run.identity(), text) as d:
        # Read under the lock: another command may decode, or train, again.
        runs.check_whole(path, ("record.json", "ledger.jsonl", "config.yaml", "generations/"))
        task = load_task(run.task)
        from dpft.training.predictions import score_file  # and torch, which takes seconds

        results = {split: score_file(task, file) for split, file in files.items()}
        runs.update_record(d, scores=results)
        write_card(d.model, runs.read_record(path))
    return results
