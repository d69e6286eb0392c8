"""``dpft ls``: the config groups and their choices, read straight from the files."""

import textwrap
from typing import Annotated

import typer

from dpft.cli.output import width_to_fit
from dpft.config import folder
from dpft.config.errors import ConfigError, suggestion
from dpft.report.terminal import echo, secho


def main(
    group: Annotated[
        str | None, typer.Argument(help="A config group, such as task or clip.")
    ] = None,
) -> None:
    """List the choices of every config group, or of one: dpft ls task"""
    groups = folder.groups()
    if group is not None and group not in groups:
        expected = f"expected one of {', '.join(groups)}"
        raise ConfigError(f"no config group {group!r}{suggestion(group, groups)}; {expected}")
    width, indent = width_to_fit() or 10_000, " " * 22
    for name in groups if group is None else [group]:
        secho(folder.typed(name), bold=True)
        for choice in folder.choices(name):
            line = f"  {choice:<19} {folder.summary(name, choice)}"
            echo(textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False))
