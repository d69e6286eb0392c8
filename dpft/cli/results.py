"""Scores of a run, which may decode its texts anew, of any predictions file, or of several runs."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dpft.cli.options import AsJson
from dpft.config.errors import ConfigError, DataError
from dpft.config.overrides import value_of
from dpft.config.schema import Decode, build
from dpft.report.console import Console
from dpft.report.terminal import echo, warn
from dpft.runs.atomic import write_atomic
from dpft.runs.folders import check_no_trial, generations_files, stored_config
from dpft.runs.record import read_record


def score_verb(
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="A run's folder, and settings such as decode.beams=1 to decode it again with; or "
            "task=NAME predictions=FILE and other settings of the task."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Score a run, or a file of predictions: dpft score RUN decode.split=test

    With settings of decode, the model first writes its texts again. The scores of all texts of the
    run are updated.
    FILE in dpft score task=e2e predictions=FILE has lines of {"prediction": "...", "references":
    ["...", ...]}.
    """
    files = any(word.startswith("predictions=") for word in arguments)
    run = None if files or "=" in arguments[0] else Path(arguments[0])
    if run is not None:
        check_no_trial(run)
        if arguments[1:] or not generations_files(run, read_record(run)):
            decode(run, arguments[1:])
    with Console(stderr=True).status("scoring"):  # of E2E a minute
        results = score_predictions(arguments) if run is None else score_run(run)
    if as_json:
        only = next(iter(results.values())) if len(results) == 1 else results
        echo(json.dumps(only, indent=2))
        return
    from dpft.report.comparison import print_pairs, print_remarks
    from dpft.tasks.scores import cautions, figure

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
        print_remarks(run, read_record(run))


def score_predictions(arguments: Sequence[str]) -> dict[str, Any]:
    """Score ``predictions=FILE`` with the metrics of ``task=NAME``."""
    files = [word for word in arguments if word.startswith("predictions=")]
    resumes = any(word.startswith("resume=") for word in arguments)
    if len(files) != 1 or resumes or "=" not in arguments[0]:
        raise ConfigError(
            f"got {' '.join(arguments)}; expected one file and its task, as in dpft score task=e2e "
            "predictions=FILE, or a run's folder"
        )
    from dpft.config.compose import compose
    from dpft.config.schema import parse
    from dpft.tasks import load_task
    from dpft.training.predictions import read_predictions, score_file

    file = Path(files[0].removeprefix("predictions="))
    task = load_task(parse(compose([word for word in arguments if word not in files])).task)
    predictions = read_predictions(file)
    check_grouped(task.name, predictions, str(file))
    return {file.name: score_file(task, file, predictions)}


def check_grouped(task: str, predictions: Sequence[Any], file: str) -> None:
    """Raise DataError if each line has one of an item's several references, as E2E's files do."""
    pairs = list(itertools.pairwise(predictions))
    same = sum(a.prediction == b.prediction and a.source == b.source for a, b in pairs)
    alone = all(len(one.references) == 1 for one in predictions)
    if task in ("e2e", "dart") and alone and same > len(pairs) / 4:
        raise DataError(
            f"{file}: each line has one reference, and {same:,} of {len(predictions):,} repeat the "
            f"prediction of the line before; expected one line for each item of {task}, with all "
            "its references: scores against one at a time are too low"
        )


def score_run(path: Path) -> dict[str, Any]:
    """Score every file of a run's texts and update its record."""
    from dpft import runs
    from dpft.report.card import write_card
    from dpft.tasks import load_task
    from dpft.training.trained import parse_stored

    files = generations_files(path, read_record(path))
    text, content = stored_config(path)
    run = parse_stored(path, content)
    with runs.RunDirectory.open(path, run.identity(), text) as d:
        # Read under the lock: another command may decode, or train, again.
        runs.check_whole(path, ("record.json", "ledger.jsonl", "config.yaml", "generations/"))
        task = load_task(run.task)
        from dpft.training.predictions import score_file  # and torch, which takes seconds

        results = {split: score_file(task, file) for split, file in files.items()}
        runs.update_record(d, scores=results)
        write_card(d.model, read_record(path))
    return results


def decode(path: Path, overrides: Sequence[str]) -> None:
    """Write a run's texts again, with other settings."""
    from dpft import runs
    from dpft.training.trained import loaded_run

    trained = loaded_run(path)
    run, task = trained.run, trained.task
    settings = decoding(overrides, run.decode)
    before, after = dataclasses.asdict(run.decode), dataclasses.asdict(settings)
    changed = [f"{k}={v}" for k, v in after.items() if k != "split" and v != before[k]]
    name = "-".join([*([settings.split] if settings.split else []), *changed])
    from dpft.training.mechanisms import check_apart
    from dpft.training.predictions import predict, spelled, write_predictions
    from dpft.training.progress import Progress

    with runs.RunDirectory.open(path, run.identity(), trained.text) as directory:
        instances = task.instances(settings.split)
        check_apart(run, task, settings.split, instances)
        with Progress() as progress:
            predictions = predict(task, trained.loaded, instances, settings, run.seed, progress)
        file = directory.generations(name)
        with runs.replacing(directory.path, file, spelled(predictions)):
            write_predictions(file, predictions)
        relative = str(file.relative_to(directory.path))
        runs.update_record(directory, generations={name: relative})
    echo(f"decoded: {path / relative}", err=True)


def decoding(overrides: Sequence[str], usual: Decode) -> Decode:
    """Return the settings of decoding, changed by words such as ``decode.beams=1``."""
    values = dataclasses.asdict(usual)
    for word in overrides:
        key, value = value_of(word)
        if not key.startswith("decode."):
            raise ConfigError(f"got {word!r}; expected settings such as decode.beams=1")
        values[key.removeprefix("decode.")] = value
    return build(Decode, values, "decode")


def report_verb(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Run directories, folders that hold some, or a sweep's folder."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The file; default: report.html in the folder.")
    ] = None,
) -> None:
    """Scores and guarantees of runs side by side, and as one HTML page: dpft report runs/NAME

    The page says what was protected, how strongly, at what cost, and what is not covered. It holds
    nothing that is computed from training records without noise, and no text of your own data.
    """
    from dpft.report.comparison import show
    from dpft.report.gather import gather
    from dpft.report.page import page
    from dpft.sweep.state import find

    found = find(folders)
    file = out or found.folder / "report.html"
    runs = [gather(target) for target in found.targets]
    html = page(found, runs)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, html)
    records = [(run.target.path, run.record) for run in runs if run.record is not None]
    if 0 < len(records) <= 12:  # the page has all
        show(records)
    for run in runs:
        if run.record is None:
            why = f": {run.target.error}" if run.target.error else ""
            echo(f"{run.name}: {run.stage}{why}", err=True)
        for problem in run.problems:
            warn(f"{run.name}: {problem}", err=True)
    echo(f"{file}")
