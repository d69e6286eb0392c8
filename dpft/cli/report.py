"""``dpft report``: runs side by side on the terminal, and as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from dpft.cli.output import warn
from dpft.report.terminal import echo
from dpft.runs.atomic import owners_folder, write_atomic


def main(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Run directories, folders that hold some, or a sweep's folder."),
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Also losses and norms, which no guarantee covers.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The file; default: report.html in the folder, or in its private/."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=0, help="Generations shown of each run; default: 8, of several 2, of own data 0."
        ),
    ] = None,
) -> None:
    """Scores and guarantees of runs side by side, and as one HTML page: dpft report runs/NAME

    The page has the guarantee in plain words, scores, samples, curves, cost and settings. Without
    --private it holds nothing that is computed from training records without noise.
    """
    from dpft.report.comparison import show
    from dpft.report.gather import gather
    from dpft.report.page import page
    from dpft.sweep.find import find

    found = find(folders, private)
    file = out or found.folder / ("private/report.html" if private else "report.html")
    usual = 2 if found.several else 8
    runs = [gather(target, private, samples, usual) for target in found.targets]
    html = page(found, runs, private)
    if private and file.parent.name == "private":
        owners_folder(file.parent)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, html, mode=0o600 if private else 0o644)
    records = [(run.target.path, run.record) for run in runs if run.record is not None]
    if 0 < len(records) <= 12:  # the page has all
        show(records)
    for run in runs:
        if run.record is None:
            echo(f"{run.name}: {run.stage}", err=True)
        for problem in run.problems:
            warn(f"{run.name}: {problem}", err=True)
    echo(f"{file}")
    if private:
        warn("the page shows figures that no guarantee covers: do not publish it", err=True)
