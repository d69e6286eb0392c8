"""Printed text: text from records, data and model files is shown, and directs no terminal."""

import os
import re
from collections.abc import Iterable

import typer

# What a terminal may take for an order (control characters but for tab and line break), what makes
# a line read in another order than it is written, and halves of surrogate pairs, which no output
# can hold.
_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: object) -> str:
    r"""Return text in which what is no text is spelt out: ``\x1b`` for an escape character."""
    return _ORDERS.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def clock(seconds: float | None) -> str:
    """Return seconds as ``h:mm:ss``."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def echo(message: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a message, on standard error if ``err``."""
    typer.echo(plain(message), err=err, nl=nl)


def secho(
    message: object, *, fg: str | None = None, bold: bool | None = None, err: bool = False
) -> None:
    """Print a message in a colour, where the output is a terminal and ``NO_COLOR`` is not set."""
    colour = None if os.environ.get("NO_COLOR") else fg
    typer.secho(plain(message), fg=colour, bold=bold, err=err)


def warn(text: str, *, err: bool = False) -> None:
    """Print a line in yellow."""
    secho(text, fg=typer.colors.YELLOW, err=err)


def warn_left_out(lines: Iterable[str]) -> None:
    """Name the files that could not be read."""
    for line in lines:
        warn(f"left out: {line}", err=True)
