"""Tables, warnings and bars, which several verbs print."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from dpft.report.console import Console
from dpft.report.terminal import secho

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID


def warn(text: str, *, err: bool = False) -> None:
    """Print a line in yellow."""
    secho(text, fg=typer.colors.YELLOW, err=err)


def warn_left_out(lines: Iterable[str]) -> None:
    """Name the files that could not be read."""
    for line in lines:
        warn(f"left out: {line}", err=True)


def width_to_fit() -> int | None:
    """Return the columns of the terminal; None where lines are piped, and stay whole for grep."""
    narrow = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if narrow else None


def make_console() -> Console:
    """Return a console for a wide table."""
    # A pipe has no width.
    return Console(width=160) if width_to_fit() is None else Console()


@contextmanager
def progress_bar(*columns: "str | ProgressColumn") -> "Iterator[tuple[Progress, TaskID]]":
    """Show a live bar with rich's columns on standard error, if its lines can be redrawn."""
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.redraws) as bars:
        yield bars, bars.add_task("", total=None)
