"""``dpft ls``: the config groups and their choices, read straight from the files."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import Annotated

import typer

from dpft.config import folder
from dpft.config.errors import ConfigError, suggestion
from dpft.report.terminal import echo, secho


def main(
    group: Annotated[
        str | None, typer.Argument(help="A config group, such as task or clip; or tasks.")
    ] = None,
) -> None:
    """List the choices of every config group, or of one: dpft ls task"""
    groups = folder.groups()
    if group is not None:
        name = group if group in groups else group.removesuffix("s")
        if name not in groups:
            raise ConfigError(
                f"no config group {group!r}{suggestion(group, groups)}; expected one of "
                f"{', '.join(groups)}"
            )
        groups = [name]
    for name in groups:
        secho(folder.typed(name), bold=True)
        for choice in folder.choices(name):
            echo(_line(choice, folder.summary(name, choice)))


def _line(choice: str, summary: str) -> str:
    """A choice and what it is; beside each other, and below that, on a terminal of few columns."""
    line = f"  {choice:<19} {summary}"
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return line  # for grep and the like
    width = shutil.get_terminal_size().columns
    return textwrap.fill(line, width, subsequent_indent=" " * 22, break_on_hyphens=False)
