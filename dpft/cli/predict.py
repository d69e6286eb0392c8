"""``dpft predict RUN FILE``: the answers of a trained model to the rows of a file."""

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from dpft.cli.options import DecodeSettings, RunFolder
from dpft.cli.score import decoding
from dpft.config.errors import ConfigError, DataError
from dpft.config.overrides import value_of
from dpft.report.terminal import echo
from dpft.tasks import load_task

_COLUMN = re.compile(r"task\.\w+_column=")


def main(
    path: RunFolder,
    file: Annotated[
        Path, typer.Argument(metavar="file", help="Rows in the form of the run's task.")
    ],
    overrides: DecodeSettings = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON lines; default: FILE.predictions.jsonl.")
    ] = None,
) -> None:
    """A trained model's answers to the rows of a file: dpft predict RUN FILE

    The file has the columns of the training file, or task.text_column=NAME and the like say which;
    the column of answers may be absent. A classifier
    writes the probability of each class too, and for plain texts the log-likelihood of each text is
    written.
    """
    from dpft.training.trained import loaded_run

    trained = loaded_run(path)
    words = overrides or ()
    typed = [word for word in words if _COLUMN.match(word)]
    named = {key.removeprefix("task."): name for key, name in map(value_of, typed)}
    task = load_task({**trained.run.task, **named})
    settings = decoding([word for word in words if word not in typed], trained.run.decode)
    out = out or file.with_name(f"{file.stem}.predictions.jsonl")
    if out.suffix != ".jsonl" or out.exists() or not out.parent.is_dir():
        expected = "expected a new .jsonl file in a folder that is there: type --out FILE"
        raise ConfigError(f"--out is '{out}'; {expected}")
    questions = task.questions(file)
    if not questions:
        raise DataError(f"{file} has no rows; expected at least one")
    columns = {name for question in questions for name in question.cells}  # JSON lines differ
    plain = task.unconditional  # a model of plain texts writes no answers
    written = ("nll", "tokens") if plain else ("prediction",)
    classes = getattr(task.objective(trained.loaded), "classes", ())
    likely = [f"probability_{name}" for name in classes]
    if taken := sorted(columns.intersection([*written, *likely])):
        raise ConfigError(f"{file} has a column {taken[0]!r}, where answers are written; rename it")
    from dpft.runs.atomic import write_atomic
    from dpft.training.predictions import predict
    from dpft.training.progress import Progress

    with Progress() as progress:
        asked = [question.instance for question in questions]
        found = predict(task, trained.loaded, asked, settings, trained.run.seed, progress)
    rows = [
        {
            **question.cells,
            **{name: getattr(p, name) for name in written},
            **dict(zip(likely, p.probabilities, strict=False)),
        }
        for question, p in zip(questions, found, strict=True)
    ]
    lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    # For its owner alone, as the rows may be.
    text = "".join(lines).encode(errors="backslashreplace")  # of half an emoji
    write_atomic(out, text, mode=0o600)
    echo(f"{out}: {len(rows):,} rows")
