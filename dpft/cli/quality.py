"""``dpft quality``: what synthetic records are worth, and which figures their guarantee covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpft.cli.guard import alone
from dpft.cli.options import RunFolder
from dpft.cli.output import print_table, warn
from dpft.config.errors import ConfigError, DataError
from dpft.report.terminal import echo

if TYPE_CHECKING:
    from dpft.config.decode import Decode
    from dpft.training.quality import Generated, QualityNumber
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
    reference: Annotated[
        str | None,
        typer.Option(help="Real records: dev, test or FILE; default: what the run was scored on."),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Those of --reference FILE may be published.")
    ] = False,
    encoder: Annotated[
        str, typer.Option(help="Model that compares meanings, such as tiny; or none.")
    ] = "minilm",
    train: Annotated[
        bool, typer.Option("--train", help="Train on the records, and score on real ones.")
    ] = False,
    beside: Annotated[
        Path | None,
        typer.Option(help="With --train: the run whose scores stand beside; default: this one."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Show what no guarantee covers: overlap with training")
    ] = False,
) -> None:
    """What synthetic records are worth, and what covers each figure: dpft quality RUN

    Length, variety, distance to real records, overlap with training records and, with --train, the
    score of a model trained on them. Each figure names what covers it. RUN/quality/ has a page and
    JSON of those that may be published; the others lie in RUN/private/quality/.
    """
    alone("quality")
    if (overrides or beside is not None) and not train:
        what = overrides[0] if overrides else "--beside"
        raise ConfigError(f"{what} is for the run of --train; type --train too, or leave it out")
    if public and reference in (None, "dev", "test"):
        raise ConfigError("--public is about a file of records; type --reference FILE too")
    from dpft.runs.record import read_record
    from dpft.training.trained import loaded_run

    trained = loaded_run(path)
    other = read_record(beside or path)  # before anything takes time
    from dpft.training.quality import overlaps, read_generated, shapes
    from dpft.training.quality.texts import written

    task = trained.task
    made = read_generated(task, path, file, trained.record["config_hash"])
    if len(made.texts) < 2:
        raise DataError(f"{made.file} has {len(made.texts)} record; expected two at least")
    real, origin = _real(trained, reference)
    known = public or (task.published and reference in (None, "dev", "test"))
    covered: Any = "public" if known else "held-out"
    figures = shapes(made.texts, real, covered)
    if encoder != "none" and len(real) > 3:
        figures.append(_near(made.texts, real, encoder, covered))
    if train:
        figures += _downstream(trained, path, made, overrides or (), other, beside)
    try:
        figures += overlaps(made.texts, real, (written(r) for r in task.records("train")))
    except DataError as error:
        warn(f"note: overlap with training records is not known, since they are not found: {error}")
    content = {
        "file": made.file.name,
        "sha256": made.side["sha256"],
        "records": len(made.texts),
        "reference": {"origin": origin, "records": len(real), "public": known},
        "encoder": encoder,
        "private": made.side["private"],
        "privacy": made.side["privacy"],
        "run": made.side["run"],
        "sampling": made.side["sampling"],
        "labels": list(made.side["labels"]),
    }
    _tell(path, content, figures, made, private)


def _real(trained: TrainedRun, reference: str | None) -> tuple[list[str], str]:
    """Real records to compare with; none if the run has none and none were named."""
    from dpft.training.quality import real_texts

    try:
        return real_texts(trained.task, reference, trained.run.decode.split)
    except DataError as error:
        if reference is not None:
            raise
        warn(f"note: nothing to compare with: {error}. --reference FILE names some")
        return [], "none"


def _near(texts: Sequence[str], real: Sequence[str], name: str, covered: Any) -> QualityNumber:
    from dpft.config.errors import ModelError
    from dpft.training.quality import nearness
    from dpft.training.quality.distance import encoder

    try:
        encode = encoder(name)
    except ModelError as error:
        raise ModelError(
            f"--encoder {name}: {error}. --encoder none leaves the figure out"
        ) from None
    return nearness(texts, real, encode, covered)


def _downstream(
    trained: TrainedRun,
    path: Path,
    made: Generated,
    overrides: Sequence[str],
    other: Mapping[str, Any],
    beside: Path | None,
) -> list[QualityNumber]:
    """Train on the records without noise, which they need not, and score on real ones."""
    from dpft.config.compose import compose
    from dpft.config.schema import parse
    from dpft.privacy.guarantee import Guarantee
    from dpft.training.quality import downstream
    from dpft.training.quality.new_run import words_on
    from dpft.training.run import run_experiment

    where = path.resolve()
    # By their digest: other records in a file of the same name are another run's.
    name = f"{where.name}-on-{made.file.stem}-{made.side['sha256'][:8]}"
    words = words_on(trained.run, made.file, len(made.texts), overrides)
    words += [f"runs_dir={where.parent}", f"name={name}"]
    run = parse(compose(words))
    outcome = run_experiment(run)
    split = run.decode.split
    ours, compared = outcome.record["scores"][split], (beside or path).resolve().name
    real = other.get("scores", {}).get(split, {}).get("metrics", {})
    if real and (unlike := _scored_otherwise(split, outcome.record, other)):
        warn(
            f"note: the scores of {compared} are {unlike}: they are left out. --beside names "
            "another run"
        )
        real = {}
    decoded = _decoded_otherwise(run.decode, other["config"]["decode"])
    if real and decoded and "unfinished" in ours:  # which is counted where texts are written
        warn(
            f"note: the scores of {compared} are of texts decoded with {decoded}, and these of "
            "others: they are left out. Type the same, or --beside another run"
        )
        real = {}
    guarantee = Guarantee.of_record(other)
    said = f"{compared}, trained on the real records"
    # Of the run's own split, whatever is known of the reference.
    covered: Any = "public" if trained.task.published else "held-out"
    return downstream(
        ours["metrics"], real, said, split, covered, covered if guarantee.private else "training"
    )


def _scored_otherwise(split: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """What another run's scores are of that ours are not, as a clause; empty if nothing is known.

    Args:
        split: that was scored.
        ours: the record of the one.
        theirs: that of the other.
    """
    from dpft.training.quality.new_run import PLACES

    one, other = ours["scores"][split], theirs["scores"][split]
    if one["examples"] != other["examples"]:
        return f"of {other['examples']} examples, and these of {one['examples']}"
    mine, others = ours["config"]["task"], theirs["config"]["task"]
    asked = {"max_length"} if mine["name"] == others["name"] else set()
    file = f"{split}_file"
    if "references" in one and "references" in other:  # published, whatever its place
        if one["references"] != other["references"]:
            return "of other records than these"
    elif mine.get(file) is None or mine[file] != others.get(file):
        asked |= {*PLACES} - {"limit_eval"}  # the count tells of it
    unlike = sorted(n for n in asked if {n: mine.get(n)} != {n: others.get(n)})
    return f"of records read by other settings ({', '.join(unlike)})" if unlike else ""


def _decoded_otherwise(ours: Decode, theirs: Mapping[str, Any]) -> str:
    """What of another run's decoding is different, as it is typed; empty if they are the same."""
    from dpft.config.checks import build
    from dpft.config.decode import Decode
    from dpft.config.overrides import override

    found = build(Decode, theirs, "decode")
    names = ("beams", "sample", "top_p", "max_new_tokens", "length_penalty")
    return " ".join(
        override(f"decode.{name}", getattr(found, name))
        for name in names
        if getattr(found, name) != getattr(ours, name)
    )


def _tell(
    path: Path,
    content: Mapping[str, Any],
    figures: Sequence[QualityNumber],
    made: Generated,
    private: bool,
) -> None:
    """Write the figures where they belong, and show those that were asked for."""
    from dpft.privacy.guarantee import Guarantee
    from dpft.report.pages.quality import COVERED, cells, page, publishable, written_as

    guarantee = Guarantee.of_record(content)
    everyones = [f for f in written_as(figures) if guarantee.private and publishable(f)]
    folder, secret = path / "quality", path / "private" / "quality"
    stem = made.file.stem
    lines = ["figure", "synthetic", "real", "covered"]
    examples = made.texts[:5]
    if everyones:
        open_content = {**content, "figures": everyones}
        _save(folder, stem, open_content, page(open_content, examples))
    secret_content = {**content, "figures": written_as(figures)}
    _save(secret, stem, secret_content, page(secret_content, examples, private=True), private=True)
    shown = written_as(figures) if private else everyones
    if shown:
        print_table(lines, map(cells, shown), right=("synthetic", "real"))
        for kind in dict.fromkeys(one["covered"] for one in shown):
            echo(f"{kind} – {COVERED[kind]}")
    echo(guarantee.sentence)
    for note in guarantee.notes:
        warn(f"note: {note}")
    if everyones:
        echo(f"{folder / stem}.html: the page, also as {stem}.json")
    if len(everyones) < len(figures):
        left = len(figures) - len(everyones)
        what = "" if private else "; --private shows them"
        warn(f"{secret / stem}.html: with {left} figures that must not be published{what}")


def _save(
    folder: Path, stem: str, content: Mapping[str, Any], html: str, private: bool = False
) -> None:
    import json

    from dpft.runs.atomic import owners_folder, write_atomic
    from dpft.runs.errors import disk_report

    mode = 0o600 if private else 0o644
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    try:
        if private:
            owners_folder(folder.parent)
            owners_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / f"{stem}.json", text, mode=mode)
        write_atomic(folder / f"{stem}.html", html, mode=mode)
    except OSError as error:
        raise DataError(f"cannot write to {folder}: {disk_report(folder.parent, error)}") from error
