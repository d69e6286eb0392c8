"""``dpft score``: official scores of a run's generations or of any predictions file."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dpft.cli.options import AsJson
from dpft.cli.output import warn
from dpft.config.errors import ConfigError
from dpft.report.terminal import echo


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
    run = Path(arguments[0]) if len(arguments) == 1 and "=" not in arguments[0] else None
    results = score_run(run) if run is not None else score_predictions(arguments)
    if as_json:
        only = next(iter(results.values())) if len(results) == 1 else results
        echo(json.dumps(only, indent=2))
        return
    from dpft import runs
    from dpft.report.comparison import print_pairs, print_remarks
    from dpft.tasks.metrics.shown import cautions, figure

    for name, section in results.items():
        constant = {
            metric: f"most frequent class everywhere: {value:.4f}"
            for metric, value in section.get("baselines", {}).items()
        }
        pairs = [
            (metric, figure(metric, value, section.get("signature")), constant.get(metric, ""))
            for metric, value in section["metrics"].items()
        ]
        stopped = section.get("unfinished")
        ends = f", {stopped} of them stopped before their end" if stopped else ""
        print_pairs(f"{name}: {section['examples']} instances{ends}", pairs)
        for caution in cautions(section) if run is None else ():
            warn(caution)
    if run is not None:
        print_remarks(run, runs.read_record(run))


def score_predictions(arguments: Sequence[str]) -> dict[str, Any]:
    """Score ``predictions=FILE`` with the pipeline of ``task=NAME``."""
    files = [word for word in arguments if word.startswith("predictions=")]
    resumes = any(word.startswith("resume=") for word in arguments)
    if len(files) != 1 or resumes:
        raise ConfigError(
            f"got {' '.join(arguments)}; expected one file and its task, as in dpft score task=e2e "
            "predictions=FILE, or a run directory alone"
        )
    from dpft.config.compose import compose
    from dpft.config.schema import parse
    from dpft.tasks import load_task
    from dpft.training.predictions import score_file

    file = Path(files[0].removeprefix("predictions="))
    task = load_task(parse(compose([word for word in arguments if word not in files])).task)
    return {file.name: score_file(task, file)}


def score_run(path: Path) -> dict[str, Any]:
    """Score every generations file of a run again and update its record."""
    from dpft import runs
    from dpft.report.card import write_card
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
