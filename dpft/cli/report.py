"""``dpft report``: runs as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dpft.cli.output import warn
from dpft.config.errors import ConfigError
from dpft.report.pages.gather import Gathered, Options, gather, without_copies
from dpft.report.pages.generations import SAMPLES
from dpft.report.pages.one import one_page
from dpft.report.pages.several import several_page
from dpft.report.pages.target import Found
from dpft.report.terminal import echo
from dpft.runs.atomic import owners_folder, write_atomic
from dpft.sweep.find import find

# Of several runs each shows so many; and so many points are drawn of all lines of a chart.
_SAMPLES_OF_EACH = 2
_POINTS_OF_SEVERAL = 1500


def main(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Run directories, folders that hold some, or a sweep's folder."),
    ],
    private: Annotated[
        bool,
        typer.Option("--private", help="Also losses and norms, which no guarantee covers."),
    ] = False,
    review: Annotated[
        bool,
        typer.Option("--review", help="For those who decide on a release: review.html, one screen"),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The file; default: report.html in the folder, or in its private/."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Generations shown of each run; default: 8, of several 2, of own data 0."
        ),
    ] = None,
) -> None:
    """One HTML page of a run, of several or of a sweep: dpft report runs/NAME

    Curves, scores, samples, the guarantee in plain words, cost, settings. Without --private the
    page holds nothing that is computed from training records without noise.
    """
    if samples is not None and samples < 0:
        raise ConfigError(f"--samples is {samples}; expected 0 or more")
    found = find(folders, private)
    folder = found.folder / "private" if private else found.folder
    file = out or folder / ("review.html" if review else "report.html")
    if file.is_dir():
        raise ConfigError(f"--out {file} is a folder; expected a file, such as {file}/report.html")
    html = (_review if review else build)(found, Options(private, samples))
    try:
        if private and file.parent.name == "private":
            owners_folder(file.parent)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, html, mode=0o600 if private else 0o644)
    except OSError as error:
        raise ConfigError(
            f"could not write {file}: {error}; expected a folder that can be written to: type "
            "--out FILE"
        ) from error
    echo(f"{file}")
    if private:
        warn("the page shows figures that no guarantee covers: do not publish it", err=True)


def _review(found: Found, options: Options) -> str:
    """The page of one run for those who decide on its release."""
    if found.several:
        raise ConfigError(
            f"dpft report --review is about one run, got {len(found.targets)}: type dpft report "
            f"{found.targets[0].path} --review"
        )
    if options.private or options.samples is not None:
        raise ConfigError(
            "dpft report --review is about one run, without figures of private/ and samples: leave "
            "out --private and --samples"
        )
    run = gather(found.targets[0], options, 0)
    if run.record is None:
        raise ConfigError(
            f"{found.folder} has no record that can be read, so its guarantee is not known; "
            f"expected a trained run: type dpft report {found.folder}"
        )
    from dpft.report.pages.review import review_page

    _warn([run])
    return review_page(run)


def build(found: Found, options: Options) -> str:
    """The page of what was found."""
    if not found.several:
        run = gather(found.targets[0], options, SAMPLES)
        _warn([run])
        return one_page(run, options, found.title)
    options = Options(options.private, options.samples, _POINTS_OF_SEVERAL)
    runs: list[Gathered] = []
    prompts: dict[str, None] = {}
    for target in found.targets:
        runs.append(run := gather(target, options, _SAMPLES_OF_EACH, prompts))
        if run.generations is not None:
            prompts.update(dict.fromkeys(sample.source for sample in run.generations.samples))
    _warn(runs)
    runs, copies = without_copies(runs)
    for copy in copies:
        warn(copy, err=True)
    return several_page(runs, replace(found, problems=(*found.problems, *copies)), options)


def _warn(runs: Sequence[Gathered]) -> None:
    """Say on the terminal what the page says is damaged."""
    for run in runs:
        for problem in run.problems:
            warn(f"{run.name}: {problem}", err=True)
