"""What the verbs that read records and benchmarks tell in the same way."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import typer

from dpft.report.console import Console
from dpft.report.terminal import echo, secho

_PIPED = 160


def make_console() -> Console:
    """A console for a wide table."""
    # What is piped into a file has no width of its own.
    return Console() if sys.stdout.isatty() else Console(width=_PIPED)


def write_out(out: Path, text: str) -> None:
    """Write the file of ``--out``, and say where it lies."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    echo(f"{out}", err=True)


def tell_left_out(lines: Iterable[str]) -> None:
    """Name the files that could not be read."""
    for line in lines:
        secho(f"left out: {line}", fg=typer.colors.YELLOW, err=True)


def tell_lacking(count: int, typed: str) -> None:
    """How many runs are missing, if any, and how the command ``typed`` goes on from there."""
    if count:
        echo(
            f"{count} runs are missing: {typed} --missing shows their commands, --run makes them",
            err=True,
        )
