"""``dpft predict RUN FILE``: the answers of a trained model to the rows of a file."""

import csv
import functools
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dpft.cli.options import DecodeSettings, RunFolder
from dpft.cli.score import decoding
from dpft.config.errors import ConfigError, DataError
from dpft.report.terminal import echo


def main(
    path: RunFolder,
    file: Annotated[
        Path, typer.Argument(metavar="file", help="Rows in the form of the run's task.")
    ],
    overrides: DecodeSettings = None,
    out: Annotated[
        Path | None, typer.Option(help="JSONL or CSV; default: FILE.predictions.jsonl.")
    ] = None,
    column: Annotated[str, typer.Option(help="Name of the column of answers.")] = "prediction",
    probabilities: Annotated[
        bool,
        typer.Option(help="Also write the probability of each class: probability_CLASS."),
    ] = False,
) -> None:
    """A trained model's answers to the rows of a file: dpft predict RUN FILE

    The file has the columns of the training file; the column of answers may be absent. For plain
    texts it writes the log-likelihood of each text.
    """
    from dpft.training.trained import loaded_run

    trained = loaded_run(path)
    task = trained.task
    settings = decoding(overrides or (), trained.run.decode)
    out = out or file.with_name(f"{file.stem}.predictions.jsonl")
    if out.suffix not in (".jsonl", ".csv") or out.exists() or not out.parent.is_dir():
        expected = "expected a new file ending in .jsonl or .csv, in a folder that is there"
        raise ConfigError(f"--out is '{out}'; {expected}")
    questions = task.questions(file)
    if not questions:
        raise DataError(f"{file} has no rows; expected at least one")
    columns = {name for question in questions for name in question.cells}  # JSON lines differ
    plain = task.unconditional  # a model of plain texts writes no answers
    written = ("nll", "tokens") if plain else (column,)
    likely: list[str] = []
    if probabilities:
        from dpft.tasks.objectives.classifier import Choice

        objective = task.objective(trained.loaded)
        if not isinstance(objective, Choice):
            texts = f"answers of task={task.name} are texts; leave the option out"
            raise ConfigError(f"--probabilities is for a classifier: {texts}")
        likely = [f"probability_{name}" for name in objective.classes]
    if taken := sorted(columns.intersection([*written, *likely])):
        raise ConfigError(
            f"{file} has a column {taken[0]!r}, where answers are written; rename it"
            f"{'' if plain else ', or type --column NAME for the answers'}"
        )
    from dpft.runs.atomic import write_atomic
    from dpft.training.predictions import predict
    from dpft.training.progress import Progress

    with Progress() as progress:
        asked = [question.instance for question in questions]
        found = predict(task, trained.loaded, asked, settings, trained.run.seed, progress)
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
    """Return the text of the file; lists and the like in a CSV file are JSON."""
    spell = functools.partial(json.dumps, ensure_ascii=False, default=str)
    if suffix == ".jsonl":
        return "".join(f"{spell(row)}\n" for row in rows)
    text = io.StringIO()
    # Its line ends have a carriage return quoted.
    table = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    table.writeheader()
    for row in rows:
        table.writerow({k: spell(v) if isinstance(v, list | dict) else v for k, v in row.items()})
    return text.getvalue()
