"""``dpft predict RUN FILE``: what a trained model answers to each row of a file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dpft.cli.decode import decoding
from dpft.cli.guard import alone
from dpft.cli.options import DecodeSettings, RunFolder
from dpft.config.errors import ConfigError, DataError
from dpft.report.terminal import echo

_SUFFIXES = (".jsonl", ".csv")
_LIKELIHOOD = ("nll", "tokens")


def main(
    path: RunFolder,
    file: Annotated[
        Path,
        typer.Argument(metavar="file", help="Rows in the form of the run's task, or images."),
    ],
    overrides: DecodeSettings = None,
    out: Annotated[
        Path | None, typer.Option(help="JSONL or CSV; default: FILE.predictions.jsonl.")
    ] = None,
    column: Annotated[str, typer.Option(help="What the answers' column is called.")] = "prediction",
    probabilities: Annotated[
        bool, typer.Option(help="Also how likely each class is: probability_CLASS.")
    ] = False,
) -> None:
    """A trained model's answers to the rows of a file: dpft predict RUN FILE

    The columns are those that the run was trained on, of which the answers' may be missing; a task
    of images takes a folder of them. For plain texts it is how likely each one is.
    """
    alone("predict")
    from dpft.training.trained import loaded_run

    trained = loaded_run(path)
    if probabilities and trained.task.needs.kind == "causal":
        raise ConfigError(
            f"--probabilities: {path.name} is a run of task={trained.task.name}, whose answers are "
            "texts; expected a run of a classifier. Leave the option out"
        )
    settings = decoding(overrides or (), trained.run.decode)
    out = out or file.with_name(f"{file.stem}.predictions.jsonl")
    if out.suffix not in _SUFFIXES:
        raise ConfigError(f"--out {out}; expected a file ending in {' or '.join(_SUFFIXES)}")
    if out.exists():
        raise ConfigError(f"{out} exists; give another file: --out FILE")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: {out.parent} is no folder; expected one that is there")
    questions = trained.task.questions(file)
    if not questions:
        raise DataError(f"{file} has no rows; expected at least one")
    columns = {name for question in questions for name in question.cells}  # JSON lines differ
    # A model of plain texts writes none.
    plain = trained.task.unconditional
    written = _LIKELIHOOD if plain else (column,)
    if taken := sorted(columns.intersection(written)):
        instead = "rename it" if plain else "type --column NAME for the answers'"
        raise ConfigError(f"{file} has a column {taken[0]!r}, where answers are written; {instead}")
    from dpft.config.offline import stay_offline_if_unreachable

    stay_offline_if_unreachable()
    likely: list[str] = []
    if probabilities:
        from dpft.tasks.objectives.classifier import Choice

        objective = trained.task.objective(trained.loaded)
        assert isinstance(objective, Choice)
        likely = [f"probability_{name}" for name in objective.classes]
        if taken := [name for name in likely if name in {*columns, column}]:
            raise ConfigError(f"{file} has a column {taken[0]!r}; rename it, or leave it out")
    from dpft.runs.atomic import write_atomic
    from dpft.training.predictions import predict
    from dpft.training.progress import Progress

    with Progress() as progress:
        asked = [question.instance for question in questions]
        seed = trained.run.seed
        found = predict(trained.task, trained.loaded, asked, settings, seed, progress)
    rows = [
        {
            **question.cells,
            **{name: getattr(p, name if plain else "prediction") for name in written},
            **dict(zip(likely, p.probabilities, strict=False)),
        }
        for question, p in zip(questions, found, strict=True)
    ]
    # For its owner alone, as the rows may be.
    text = _spelled(rows, out.suffix).encode(errors="backslashreplace")  # of half an emoji
    write_atomic(out, text, mode=0o600)
    echo(f"{out}: {len(rows):,} rows")


def _spelled(rows: Sequence[Mapping[str, Any]], suffix: str) -> str:
    if suffix == ".jsonl":
        return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    text = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)
    table = csv.DictWriter(text, list(columns))  # its line ends have a carriage return quoted
    table.writeheader()
    for row in rows:  # a CSV file holds messages and the like as JSON
        table.writerow(
            {
                name: json.dumps(value, ensure_ascii=False, default=str)
                if isinstance(value, list | dict)
                else value
                for name, value in row.items()
            }
        )
    return text.getvalue()
