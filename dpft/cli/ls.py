"""``dpft ls``: the config groups and their choices, read straight from the files."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from dpft.cli.output import width_to_fit
from dpft.config import folder, plugins
from dpft.config.errors import ConfigError, suggestion
from dpft.report.terminal import echo, secho

_PLUGINS = "plugins"


def main(
    group: Annotated[
        str | None, typer.Argument(help="A config group, such as task or clip; or plugins.")
    ] = None,
) -> None:
    """List the choices of every config group, or of one: dpft ls task

    What other installed packages bring is marked with the package; dpft ls plugins imports it too.
    """
    groups = folder.groups()
    if group == _PLUGINS:
        _show_plugins(try_each=True)
        return
    if group is not None:
        name = group if group in groups else group.removesuffix("s")
        if name not in groups:
            raise ConfigError(
                f"no config group {group!r}{suggestion(group, groups)}; expected one of "
                f"{', '.join([*groups, _PLUGINS])}"
            )
        groups = [name]
    for name in groups:
        secho(folder.typed(name), bold=True)
        for choice in folder.choices(name):
            package = folder.package_of(name, choice)
            origin = "" if package is None else f" ({package})"
            echo(_line(choice, folder.summary(name, choice) + origin))
    if group is None and any(map(plugins.parts, plugins.KINDS)):
        _show_plugins()


def _show_plugins(try_each: bool = False) -> None:
    """What other installed packages bring.

    Args:
        try_each: whether to import each, and say of one that cannot be what is wrong.
    """
    secho("plugins: parts of other packages", bold=True)
    failures = []
    for kind, called in plugins.KINDS.items():
        for part in plugins.parts(kind):
            origin = f"{called}, {plugins.TYPED[kind]} ({part.package} {part.version})"
            echo(_line(part.name, origin))
            try:
                if try_each:
                    part.load()
            except ConfigError as error:
                failures.append(str(error))
    if failures:
        raise ConfigError("\n".join(failures))
    if try_each and not any(map(plugins.parts, plugins.KINDS)):
        echo("  none is installed; docs/how-to/extend.md says how one is made")


def _line(choice: str, summary: str) -> str:
    """A choice and what it is; beside each other, and below that, on a terminal of few columns."""
    line = f"  {choice:<19} {summary}"
    width = width_to_fit()
    if width is None:
        return line
    return textwrap.fill(line, width, subsequent_indent=" " * 22, break_on_hyphens=False)
