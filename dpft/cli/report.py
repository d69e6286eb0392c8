"""``dpft report``: runs side by side on the terminal, and as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from dpft.cli.output import warn
from dpft.report.terminal import echo
from dpft.runs.atomic import write_atomic


def main(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Run directories, folders that hold some, or a sweep's folder."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The file; default: report.html in the folder.")
    ] = None,
) -> None:
    """Scores and guarantees of runs side by side, and as one HTML page: dpft report runs/NAME

    The page says what was protected, how strongly, at what cost, and what is not covered. It holds
    nothing that is computed from training records without noise, and no text of your own data.
    """
    from dpft.report.comparison import show
    from dpft.report.gather import gather
    from dpft.report.page import page
    from dpft.sweep.find import find

    found = find(folders)
    file = out or found.folder / "report.html"
    runs = [gather(target) for target in found.targets]
    html = page(found, runs)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, html)
    records = [(run.target.path, run.record) for run in runs if run.record is not None]
    if 0 < len(records) <= 12:  # the page has all
        show(records)
    for run in runs:
        if run.record is None:
            why = f": {run.target.error}" if run.target.error else ""
            echo(f"{run.name}: {run.stage}{why}", err=True)
        for problem in run.problems:
            warn(f"{run.name}: {problem}", err=True)
    echo(f"{file}")
