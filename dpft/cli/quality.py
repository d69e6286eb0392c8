"""``dpft quality``: overlap of synthetic records with training records, and a model's score."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpft.cli.options import RunFolder
from dpft.cli.output import print_table, warn
from dpft.config.errors import ConfigError, DataError
from dpft.tasks.metrics.shown import figure

if TYPE_CHECKING:
    from dpft.synthesis.records import Generated
    from dpft.training.trained import TrainedRun


def main(
    path: RunFolder,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="With --train: settings of the new run, such as optim.epochs=3."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Records of dpft generate; default: those in synthetic/.")
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Train on the records, and score on real ones.")
    ] = False,
    private: Annotated[
        bool, typer.Option("--private", help="Show the overlap, which must not be published.")
    ] = False,
) -> None:
    """Overlap of synthetic records with the training records: dpft quality RUN

    The overlap is computed without noise. It is stored in RUN/private/quality/; --private shows it.
    With --train, a model is trained on the synthetic records and scored on real ones.
    """
    if overrides and not train:
        raise ConfigError(f"{overrides[0]} is for the run of --train; type --train too")
    from dpft.training.trained import loaded_run

    trained = loaded_run(path)
    from dpft.synthesis.records import read_generated

    file = file or path / "synthetic" / trained.task.written_as
    made = read_generated(trained.task, file, trained.record["config_hash"])
    _overlap(trained, path, made, private)
    if train:
        _train(trained, path, made, overrides or ())


def _overlap(trained: "TrainedRun", path: Path, made: "Generated", private: bool) -> None:
    """Write the overlap with training records, also of held-out ones; print it if private."""
    from dpft.runs.atomic import owners_folder, write_atomic
    from dpft.synthesis.records import OVERLAP, overlaps, written_text
    from dpft.training.held_out import check_scored

    task, split, groups = trained.task, trained.run.decode.split, {"synthetic": made.texts}
    try:
        records = task.records(split)
        check_scored(task, split, records)
        if records:
            groups["held_out"] = [written_text(record) for record in records]
    except DataError as error:
        warn(f"note: no held-out records to compare with: {error}")
    try:
        training = (written_text(record) for record in task.records("train"))
        found = dict(zip(groups, overlaps(list(groups.values()), training), strict=True))
    except DataError as error:
        warn(f"note: overlap with training records is not known, since they are not found: {error}")
        return
    where = path / "private" / "quality" / f"{made.file.stem}.json"
    content = {
        "file": made.file.name,
        "sha256": made.side["sha256"],
        "overlap": {group: asdict(overlap) for group, overlap in found.items()},
    }
    owners_folder(where.parent.parent)
    owners_folder(where.parent)
    write_atomic(where, json.dumps(content, indent=2) + "\n", mode=0o600)
    if private:
        rows = [
            [name, *(figure(name, getattr(one, field), None) for one in found.values())]
            for field, name in (
                ("runs", f"runs of {OVERLAP} words that occur in training"),
                ("holding", "records that hold such a run"),
                ("copies", "records that are a training record"),
            )
        ]
        heads = [group.replace("_", "-") for group in groups]
        print_table(["share of", *heads], rows, right=heads)
    warn(f"{where}: must not be published{'' if private else '; --private shows it'}")


def _train(trained: "TrainedRun", path: Path, made: "Generated", overrides: Sequence[str]) -> None:
    """Train on the records without noise, which they do not need; compare scores on real ones."""
    from dpft.config.compose import compose
    from dpft.config.schema import parse
    from dpft.report.comparison import show
    from dpft.synthesis.records import words_on
    from dpft.training.run import run_experiment

    where = path.resolve()
    # Other records in a file of the same name are another run's, so the name has their digest.
    name = f"{where.name}-on-{made.file.stem}-{made.side['sha256'][:8]}"
    words = words_on(trained.run, made.file, len(made.texts), overrides)
    outcome = run_experiment(parse(compose([*words, f"runs_dir={where.parent}", f"name={name}"])))
    show([(path, trained.record), (outcome.path, outcome.record)])
