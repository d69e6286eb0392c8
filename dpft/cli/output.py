"""What several verbs print and write in the same way."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpft.config.errors import ConfigError, suggestion
from dpft.report.console import Console
from dpft.report.terminal import echo, secho
from dpft.runs.atomic import write_atomic

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

_PIPED_WIDTH = 160  # what is piped into a file has no width of its own


def warn(text: str, *, err: bool = False) -> None:
    """A line in yellow."""
    secho(text, fg=typer.colors.YELLOW, err=err)


def width_to_fit() -> int | None:
    """Columns of the terminal; None where lines go to grep and the like, which want them whole."""
    narrow = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if narrow else None


def make_console() -> Console:
    """A console for a wide table."""
    return Console(width=_PIPED_WIDTH) if width_to_fit() is None else Console()


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    **options: Any,
) -> None:
    """Print a table.

    Args:
        headings: of the columns.
        rows: cells, shown as they are.
        right: headings of the columns that are aligned to the right.
        options: for `rich.table.Table`.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, **options)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    make_console().print(table)


@contextmanager
def progress_bar(*columns: str | ProgressColumn) -> Iterator[tuple[Progress, TaskID]]:
    """A live bar on standard error; nothing where none can be redrawn.

    Args:
        columns: as of `rich.progress.Progress`.
    """
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.redraws) as bars:
        yield bars, bars.add_task("", total=None)


def chosen_format(form: str | None, out: Path | None, suffixes: Mapping[str, str]) -> str:
    """The format of ``--format``, else that of the suffix of ``--out``, else the terminal's.

    Args:
        form: of ``--format``.
        out: of ``--out``.
        suffixes: formats by the suffix of a file.

    Raises:
        ConfigError: for an unknown format or suffix.
    """
    if form is not None:
        formats = tuple(suffixes.values())
        if form not in formats:
            raise ConfigError(
                f"--format is {form!r}{suggestion(form, formats)}; expected one of "
                f"{', '.join(formats)}"
            )
        return form
    if out is None:
        return "terminal"
    if out.suffix not in suffixes:
        raise ConfigError(
            f"--out is {str(out)!r}; expected a file ending in {', '.join(suffixes)}, or --format"
        )
    return suffixes[out.suffix]


def write_or_print(
    out: Path | None, form: str, render: Callable[[], str], show: Callable[[Console], None]
) -> None:
    """Write a result to the file of ``--out``, or print it.

    Args:
        out: the file; None: standard output.
        form: from `chosen_format`.
        render: the text in that format.
        show: prints it on a terminal.
    """
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists() and not out.is_file():  # such as /dev/stdout
            out.write_text(render(), encoding="utf-8")
        else:
            write_atomic(out, render())
        echo(f"{out}", err=True)
    elif form == "terminal":
        show(make_console())
    else:
        echo(render(), nl=False)


def warn_left_out(lines: Iterable[str]) -> None:
    """Name the files that could not be read."""
    for line in lines:
        warn(f"left out: {line}", err=True)
