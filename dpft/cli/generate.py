"""``dpft generate``: synthetic records from a trained run, and a file with their guarantee."""

import dataclasses
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.dataclasses import dataclass

from dpft.cli.decode import decoding, read_value
from dpft.cli.options import RunFolder
from dpft.cli.output import warn
from dpft.config.errors import ConfigError, DataError
from dpft.config.schema import STRICT, Count, Decode, build
from dpft.report.terminal import echo
from dpft.runs import atomic


@dataclass(frozen=True, config=STRICT)
class GenerateSettings:
    """What to write."""

    n: Count
    sources: str | None = None
    out: str | None = None
    seed: int = 0
    system: str | None = None


def main(
    path: RunFolder,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="n=1000; sources=dev, test, sample, FILE or [a,b]; system=TEXT (of a chat); "
            "out=FILE; seed=0; decode.top_p=0.9 and other settings of decode."
        ),
    ] = None,
    not_private: Annotated[
        bool, typer.Option("--not-private", help="Also from a run without any guarantee.")
    ] = False,
) -> None:
    """Synthetic records from a private run: dpft generate RUN n=1000 sources=dev

    Texts that a privately trained model writes have its guarantee; FILE.guarantee.md says so. Where
    the model writes for a source, sources are copied as they are and are NOT covered: give public
    ones. Those of the training records are refused. language_modeling and chat (trained with
    task.train_on=all) have no sources: whole texts and conversations are written.
    """
    changes = [word for word in overrides or () if word.startswith("decode.")]
    typed = (word.partition("=") for word in overrides or () if word not in changes)
    texts = ("sources", "out", "system")  # in which nothing is a number or a date
    settings = build(
        GenerateSettings, {key: v if key in texts else read_value(v) for key, _, v in typed}
    )
    from dpft.training.trained import loaded_run

    trained = loaded_run(path)
    from dpft.privacy.guarantee import Guarantee
    from dpft.synthesis.records import as_markdown, find_sources, sample, side_file, side_path

    if not Guarantee.of_record(trained.record).private and not not_private:
        raise ConfigError(
            f"{path} was trained without privacy: what its model writes may repeat training "
            "records word for word. Train with eps=3 first, or type --not-private if the records "
            "are public or the texts stay where the records are"
        )
    task = trained.task
    # Nucleus sampling with p = 0.9, of texts as long as the run's answers, or its records.
    usual = dataclasses.asdict(trained.run.decode) | {"beams": 1, "sample": True, "top_p": 0.9}
    if task.writes_whole:
        usual["max_new_tokens"] = getattr(task, "max_length", usual["max_new_tokens"])
    how = decoding(changes, build(Decode, usual, "decode"))
    if settings.system is not None and task.name != "chat":
        raise ConfigError(f"system={settings.system!r} with task {task.name}; expected task chat")
    out = Path(settings.out) if settings.out else path / "synthetic" / task.written_as
    sources = find_sources(task, settings.sources, settings.n, settings.seed)
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
        with progress.phase("sampling", settings.n) as advance:
            synthetic = sample(
                *(task, trained.loaded, sources.rows, settings.n, how, settings.seed, advance),
                system=settings.system,
            )
    if not synthetic.targets:
        raise DataError(
            f"none of the {settings.n} texts has a word or is a conversation; expected one at "
            "least: train for longer, or begin conversations with system=TEXT"
        )
    sampling = dataclasses.asdict(how) | {"seed": settings.seed}
    del sampling["split"], sampling["batch_size"]
    sampling |= {} if settings.system is None else {"system": settings.system}
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
    _print(content, out)
    place = "" if settings.out is None else f" --file {shlex.quote(str(out))}"
    echo(f"overlap and use: dpft quality {shlex.quote(str(path))}{place} --train")


def _print(content: Mapping[str, Any], out: Path) -> None:
    from dpft.privacy.guarantee import Guarantee
    from dpft.synthesis.records import side_path

    records = content["records"]
    empty = records["empty_left_out"]
    left_out = f" ({empty} without text in its form)" if empty else ""
    echo(f"{out}: {records['written']} records{left_out}")
    if stopped := records["stopped_before_their_end"]:
        warn(
            f"note: {stopped} of them were stopped before their end; "
            f"decode.max_new_tokens={2 * content['sampling']['max_new_tokens']} leaves more room"
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
