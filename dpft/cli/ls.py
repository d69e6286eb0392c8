"""``dpft ls``: choices and settings of the config groups."""

import textwrap
from typing import Annotated

import typer

from dpft.cli.output import width_to_fit
from dpft.config import folder
from dpft.config.errors import one_of
from dpft.report.terminal import echo, secho


def main(
    group: Annotated[
        str | None,
        typer.Argument(help="A group, such as clip, or a choice, such as clip=ghost."),
    ] = None,
) -> None:
    """List the choices of all config groups, or of one: dpft ls clip

    dpft ls clip=ghost shows the settings of a choice, with comments.
    """
    name, equals, choice = (group or "").lstrip("+").partition("=")
    groups = folder.groups()
    if group is not None:
        one_of("config group", name, groups)
    if equals:
        one_of(name, choice, folder.choices(name))
        echo((folder.conf_dir() / name / f"{choice}.yaml").read_text(encoding="utf-8"), nl=False)
        return
    width, indent = width_to_fit() or 10_000, " " * 22
    for one in groups if group is None else [name]:
        secho(typed(one), bold=True)
        for choice in folder.choices(one):
            line = f"  {choice:<19} {folder.summary(one, choice)}"
            echo(textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False))


def typed(group: str) -> str:
    """Return what is typed before a choice: ``task=``, ``+experiment=``."""
    return f"{'+' if group in folder.PRESETS else ''}{group}="
