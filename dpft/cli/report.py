"""``dpft report``: runs as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from dpft.config.errors import ConfigError
from dpft.report.pages.gather import Options, gather
from dpft.report.pages.generations import SAMPLES
from dpft.report.pages.one import one_page
from dpft.report.pages.several import several_page
from dpft.report.pages.target import Found
from dpft.report.terminal import echo, secho
from dpft.runs.atomic import owners_folder, write_atomic
from dpft.sweep.find import find

# Of several runs each shows so many; and so many points are drawn of all lines of a chart.
_SAMPLES_OF_EACH = 2
_POINTS_OF_SEVERAL = 1500


def main(
    paths: Sequence[Path],
    *,
    private: bool = False,
    out: Path | None = None,
    samples: int | None = None,
) -> None:
    """Write the page and say where it lies.

    Args:
        paths: run directories, folders that hold some, or a sweep's folder.
        private: show also what no guarantee covers; the page then lies under ``private/``.
        out: the file; None: ``report.html`` in the run's, the sweep's or the runs' folder.
        samples: generations of each run; None: eight, two of each of several runs, and none of
            one's own data.

    Raises:
        ConfigError: if there is no run, or the file cannot be written.
    """
    if samples is not None and samples < 0:
        raise ConfigError(f"--samples is {samples}; expected 0 or more")
    found = find(paths, private)
    file = out or _place(found, private)
    if file.is_dir():
        raise ConfigError(f"--out {file} is a folder; expected a file, such as {file}/report.html")
    html = build(found, Options(private, samples))
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
        secho(
            "the page shows figures that no guarantee covers: do not publish it",
            fg=typer.colors.YELLOW,
            err=True,
        )


def build(found: Found, options: Options) -> str:
    """The page of what was found."""
    if not found.several:
        return one_page(gather(found.targets[0], options, SAMPLES), options, found.title)
    options = Options(options.private, options.samples, _POINTS_OF_SEVERAL)
    runs = [gather(target, options, _SAMPLES_OF_EACH) for target in found.targets]
    return several_page(runs, found, options)


def _place(found: Found, private: bool) -> Path:
    return found.folder / "private" / "report.html" if private else found.folder / "report.html"
