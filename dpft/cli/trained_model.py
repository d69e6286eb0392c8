"""Uses of a trained model: export, answers to a file, and synthetic records."""

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic.dataclasses import dataclass

from dpft.cli.options import DecodeSettings, RunFolder
from dpft.cli.results import decoding
from dpft.config.errors import ConfigError, DataError, Missing, SettingError
from dpft.config.overrides import value_of
from dpft.config.schema import STRICT, Count, Decode, build
from dpft.report.terminal import echo, warn
from dpft.runs import atomic

if TYPE_CHECKING:
    from dpft.training.trained import TrainedRun

_COLUMN = re.compile(r"task\.\w+_column=")
_TEXTS = ("sources=", "out=")  # of generate as they are typed: in them nothing is a number


def export_verb(
    path: RunFolder,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Write the whole model, LoRA merged in."),
    ] = False,
    to: Annotated[
        Path | None, typer.Option(help="Folder to write. Default: export/ in the run's folder.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="Name of the adapter's base model, if the run's is not on a hub."),
    ] = None,
) -> None:
    """The model as a folder for other tools: dpft export RUN --merge

    Writes the weights, the tokenizer with its chat template, and the model card with the guarantee,
    but nothing from private/. transformers loads the model, and peft an adapter, without dpft.
    """
    from dpft.report.card import loader
    from dpft.report.comparison import print_guarantee
    from dpft.training.trained import export, loaded_run

    trained, folder = loaded_run(path), to or path / "export"
    shape = export(trained, folder, merge=merge, base=base)
    what = "a whole model" if shape.base is None else f"an adapter of {shape.base}"
    echo(f"{folder}: {what}")
    if code := loader(trained.record, shape):
        echo("\n" + code.replace("FOLDER", str(folder)) + "\n")
    print_guarantee(trained.record)


def predict_verb(
    path: RunFolder,
    file: Annotated[
        Path, typer.Argument(metavar="file", help="Rows in the form of the run's task.")
    ],
    overrides: DecodeSettings = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON lines; default: NAME.predictions.jsonl for NAME.csv.")
    ] = None,
) -> None:
    """A trained model's answers to the rows of a file: dpft predict RUN FILE

    The file has the columns of the training file, or task.text_column=NAME and the like say which;
    the column of answers may be absent. A classifier
    writes the probability of each class too, and for plain texts the log-likelihood of each text is
    written.
    """
    from dpft.tasks import load_task
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
        there = ", which exists" if out.exists() else ""
        raise ConfigError(f"the answers would be in '{out}'{there}; {expected}")
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


@dataclass(frozen=True, config=STRICT)
class GenerateSettings:
    """The settings of ``dpft generate``."""

    n: Count | None = None
    sources: str | None = None
    out: str | None = None
    seed: int = 0


def generate_verb(
    path: RunFolder,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="n=1000; sources=dev, test, FILE or [a,b]; out=FILE; seed=0; "
            "decode.top_p=0.9 and other settings of decode."
        ),
    ] = None,
    not_private: Annotated[
        bool, typer.Option("--not-private", help="Allow a run that was trained without privacy.")
    ] = False,
    overlap: Annotated[
        bool,
        typer.Option(
            "--overlap",
            help="Write no records. Compare those that were written, of out=FILE, with the "
            "training records: the result is not private, and goes to RUN/private/quality/.",
        ),
    ] = False,
) -> None:
    """Synthetic records from a private run: dpft generate RUN n=1000 sources=dev

    The records have the guarantee of the run's training, which FILE.guarantee.md states. A task
    whose model answers a source copies the sources as they are: they are NOT protected, so give
    public ones. Sources of training records are rejected. language_modeling has no sources: the
    model writes whole texts.
    """
    changes = [word for word in overrides or () if word.startswith("decode.")]
    others = [word for word in overrides or () if word not in changes]
    texts = dict(word.split("=", 1) for word in others if word.startswith(_TEXTS))
    numbers = dict(value_of(word) for word in others if not word.startswith(_TEXTS))
    settings = build(GenerateSettings, texts | numbers)
    n = settings.n or 0
    if not n and not overlap:
        raise SettingError("n", Missing.UNSET, advice="type n=1000, the number of records")
    from dpft.training.trained import loaded_run

    trained = loaded_run(path)
    task = trained.task
    out = Path(settings.out) if settings.out else path / "synthetic" / task.written_as
    if overlap:
        _overlap(trained, path, out)
        return
    from dpft.privacy.guarantee import Guarantee
    from dpft.synthesis.synthetic import (
        as_markdown,
        find_sources,
        sample,
        side_file,
        side_path,
    )

    if not Guarantee.of_record(trained.record).private and not not_private:
        raise ConfigError(
            f"{path} was trained without privacy: what its model writes may repeat training "
            "records word for word. Train with eps=3 first, or type --not-private if the records "
            "are public or the texts stay where the records are"
        )
    # Nucleus sampling with p = 0.9, of texts as long as the run's answers, or its records.
    usual = dataclasses.asdict(trained.run.decode) | {"beams": 1, "sample": True, "top_p": 0.9}
    if task.unconditional:
        usual["max_new_tokens"] = getattr(task, "max_length", usual["max_new_tokens"])
    how = decoding(changes, build(Decode, usual, "decode"))
    sources = find_sources(task, settings.sources, n, settings.seed)
    suffix = Path(task.written_as).suffix
    if out.suffix != suffix or out.exists():
        problem = "exists" if out.exists() else f"does not end in {suffix}, as this task writes"
        raise ConfigError(f"{out} {problem}; give another file with out=FILE")
    out.parent.mkdir(parents=True, exist_ok=True)
    from dpft.training.progress import Progress

    with Progress() as progress:
        # A figure of the training records: to be looked at, but not in a log file.
        if sources.in_training and progress.console.is_terminal:
            progress.warn(
                f"{sources.in_training:,} of {sources.distinct:,} sources are sources of training "
                "records too; mind whether they are public"
            )
        with progress.phase("sampling", n) as advance:
            synthetic = sample(task, trained.loaded, sources.rows, n, how, settings.seed, advance)
    if not synthetic.targets:
        raise DataError(
            f"none of the {n} texts has a word; expected one at least: train for longer"
        )
    sampling = dataclasses.asdict(how) | {"seed": settings.seed}
    del sampling["split"], sampling["batch_size"]
    unnamed = out.with_name(f".{out.name}.tmp")  # records get their name last, with the guarantee
    try:
        task.write_records(synthetic.rows, synthetic.targets, unnamed)
        digest = atomic.sha256_file(unnamed)
        content = side_file(
            trained.record, path.resolve().name, synthetic, sources, sampling, out.name, digest
        )
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        atomic.write_atomic(side_path(out), text)
        atomic.write_atomic(side_path(out, "md"), as_markdown(content))
        unnamed.replace(out)
    except OSError as error:
        unnamed.unlink(missing_ok=True)
        raise DataError(f"cannot write {out}: {atomic.disk_report(out.parent, error)}") from error
    records, left_out = content["records"], ""
    if empty := records["empty_left_out"]:
        left_out = f" ({empty} without text)"
    echo(f"{out}: {records['written']} records{left_out}")
    if stopped := records["stopped_before_their_end"]:
        warn(
            f"note: {stopped} of them were stopped before their end; "
            f"decode.max_new_tokens={2 * how.max_new_tokens} leaves more room"
        )
    if cut := records["sources_cut_for_the_model"]:
        warn(f"note: {cut} of their sources were too long for the model, which saw a part of each")
    echo(f"{side_path(out, 'md')}: the guarantee, also as {side_path(out).name}")
    guarantee = Guarantee.of_record(content)
    echo(guarantee.sentence)
    for note in guarantee.notes:
        warn(f"note: {note}")
    if content["sources"]["distinct"]:
        echo(f"sources: {content['sources']['origin']}; {content['sources']['privacy']}")
    run, typed = shlex.quote(str(path)), f" {shlex.quote(f'out={out}')}" if settings.out else ""
    echo(f"overlap with the training records: dpft generate {run}{typed} --overlap")
    echo(f"to train on them: the run's settings with task.synthetic={out} clip=none name=NAME")


def _overlap(trained: "TrainedRun", path: Path, file: Path) -> None:
    """Write how much written records, and held-out ones, have in common with training records."""
    from dpft.synthesis.synthetic import overlaps, read_generated, written_text
    from dpft.training.mechanisms import check_scored

    made = read_generated(trained.task, file, trained.record["config_hash"])
    task, split, groups = trained.task, trained.run.decode.split, {"synthetic": made.texts}
    try:
        records = task.records(split)
        check_scored(task, split, records)
        if records:
            groups["held_out"] = [written_text(record) for record in records]
    except DataError as error:
        warn(f"note: no held-out records to compare with: {error}")
    training = (written_text(record) for record in task.records("train"))
    found = dict(zip(groups, overlaps(list(groups.values()), training), strict=True))
    where = path / "private" / "quality" / f"{file.stem}.json"
    content = {
        "file": file.name,
        "sha256": made.side["sha256"],
        "overlap": {group: dataclasses.asdict(one) for group, one in found.items()},
    }
    atomic.owners_folder(where.parent.parent)
    atomic.owners_folder(where.parent)
    atomic.write_atomic(where, json.dumps(content, indent=2) + "\n", mode=0o600)
    warn(f"{where}: shares of the training records without noise, which must not be published")
