"""``dpft study``: a blinded rating sheet of several runs' texts, and what the ratings say."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpft.cli.options import AsJson
from dpft.cli.output import print_table
from dpft.config.errors import ConfigError, DataError
from dpft.report.terminal import echo

if TYPE_CHECKING:
    from dpft.reproduce.study import Key, Ratings, RatingSummary, System


def make(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run directories, or predictions files (.jsonl)."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for sheet.csv, form.html and key.json.")],
    items: Annotated[int, typer.Option(help="Contexts drawn.")] = 20,
    raters: Annotated[int, typer.Option(help="People who rate.")] = 20,
    per_rater: Annotated[int, typer.Option(help="Contexts for each; all systems' replies.")] = 5,
    split: Annotated[str, typer.Option(help="Of the runs' generations.")] = "dev",
    seed: Annotated[
        int | None,
        typer.Option(help="Of what is drawn, and of the order; secret. Default: drawn."),
    ] = None,
    generations: Annotated[
        str | None, typer.Option(help="Their name, where not the split's: see record.json.")
    ] = None,
) -> None:
    """A blinded sheet of several runs' replies: dpft study make RUN RUN --out FOLDER"""
    from dpft.reproduce.study import design, write_study

    systems = [
        _system(path, title, generations or split)
        for path, title in zip(runs, _titles(runs), strict=True)
    ]
    study = design(systems, items=items, raters=raters, per_rater=per_rater, seed=seed)
    sheet, form, key = write_study(study, out)
    ratings = sum(map(len, study.raters))
    echo(
        f"{form}: for raters, {items} contexts, {len(study.systems)} systems, {ratings} ratings\n"
        f"{sheet}: the same as a table\n"
        f"{key}: which system wrote what; keep it from the raters\n"
        f"then: dpft study read FILLED.csv... --key {shlex.quote(str(key))}"
    )


def read(
    files: Annotated[list[Path], typer.Argument(help="Filled sheets, or files of the form.")],
    key_file: Annotated[Path, typer.Option("--key", help="The key.json of the sheet.")],
    partial: Annotated[bool, typer.Option("--partial", help="Though ratings are missing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ratings with intervals: dpft study read A.csv --key key.json"""
    from dpft.reproduce.study import read_key, read_ratings, summarise

    key = read_key(key_file)
    ratings = read_ratings(files, key)
    if ratings.missing and not partial:
        listed = ", ".join(f"rater {rater}: {n}" for rater, n in ratings.missing.items())
        raise DataError(
            f"{sum(ratings.missing.values())} ratings are missing ({listed}); expected one for "
            "every reply shown: give the other files too, or type --partial"
        )
    summaries = summarise(ratings.given, key)
    result = _result(key, ratings, summaries)
    text = json.dumps(result, indent=2, ensure_ascii=False)
    target = key_file.with_name("study.json")
    from dpft.reproduce.study.plot import plot

    try:
        target.write_text(text + "\n", encoding="utf-8")
        plots = plot(summaries, _title(result), key_file.with_name("study"))
    except OSError as error:
        raise DataError(f"cannot write beside {key_file}: {error.strerror}") from error
    if as_json:
        echo(json.dumps(result, indent=2))  # which escapes control characters itself
        return
    _show(result, summaries)
    echo("\n".join(map(str, [target, *plots])))


VERBS = {"make": make, "read": read}


def _titles(paths: Sequence[Path]) -> list[str]:
    """Short names; as typed where two would be the same."""
    short = [path.stem if path.suffix == ".jsonl" else path.resolve().name for path in paths]
    return [
        name if short.count(name) == 1 else str(path)
        for name, path in zip(short, paths, strict=True)
    ]


def _system(path: Path, title: str, name: str) -> System:
    from dpft import runs
    from dpft.reproduce.study import System
    from dpft.runs.generations import generations_files
    from dpft.runs.hidden import check_no_trial

    check_no_trial(path)
    if path.suffix == ".jsonl":
        from dpft.training.predictions import read_predictions

        return System(title, read_predictions(path), {"guarantee": "not known: a file, no run"})
    record = runs.read_record(path)
    known = generations_files(path, record)
    if name not in known:
        raise ConfigError(
            f"{path} has no generations {name!r}; it has {', '.join(known) or 'none'}: type "
            f"dpft decode {shlex.quote(str(path))} decode.split=dev, or choose with --split "
            "or --generations"
        )
    from dpft.privacy.guarantee import Guarantee
    from dpft.training.predictions import read_predictions  # and torch, which takes seconds

    guarantee = Guarantee.of_record(record)
    about = {
        "config_hash": record["config_hash"],
        "generations": name,
        "labels": record.get("labels", []),
        "guarantee": guarantee.statement,
        "caveats": list(guarantee.notes),
    }
    return System(title, read_predictions(known[name]), about)


def _result(key: Key, ratings: Ratings, summaries: Sequence[RatingSummary]) -> dict[str, Any]:
    return {
        "study": key.study,
        "scale": "1 to 5, higher is better",
        "raters": len({rating.rater for rating in ratings.given}),
        "ratings": len(ratings.given),
        "missing": sum(ratings.missing.values()),
        "intervals": {
            "interval": "95%, mean +- 1.96 s / sqrt(n), as if ratings were independent",
            "clustered": "95%, cluster-robust by rater, Student's t with raters - 1 degrees",
        },
        "systems": {
            one.system: {
                **{k: v for k, v in dataclasses.asdict(one).items() if k != "system"},
                **key.systems[one.system],
            }
            for one in summaries
        },
    }


def _title(result: dict[str, Any]) -> str:
    labels = {label for one in result["systems"].values() for label in one.get("labels", [])}
    title = f"{result['ratings']} ratings by {result['raters']} raters"
    title += f", {result['missing']} missing" if result["missing"] else ""
    return f"{title} ({', '.join(sorted(labels))})" if labels else title


def _show(result: dict[str, Any], summaries: Sequence[RatingSummary]) -> None:
    numbers = ("n", "mean", "95% interval", "clustered by rater")
    rows = [
        (
            one.system,
            str(one.n),
            "-" if one.mean is None else f"{one.mean:.2f}",
            _span(one.interval),
            _span(one.clustered),
        )
        for one in summaries
    ]
    title = {"title": _title(result), "title_justify": "left"}
    print_table(["system", *numbers], rows, right=numbers, **title)
    for name, one in result["systems"].items():
        if "guarantee" in one:
            echo(f"{name}: {'; '.join([one['guarantee'], *one.get('caveats', [])])}")


def _span(interval: tuple[float, float] | None) -> str:
    return "-" if interval is None else f"[{interval[0]:.2f}, {interval[1]:.2f}]"
