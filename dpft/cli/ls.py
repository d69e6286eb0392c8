"""``dpft ls``: the config groups and their choices, read straight from the files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpft.config.errors import ConfigError, suggestion
from dpft.config.folder import conf_dir
from dpft.config.presets import PRESETS
from dpft.report.terminal import echo, secho


def main(
    group: Annotated[
        str | None, typer.Argument(help="A config group, such as task or clip; or tasks.")
    ] = None,
) -> None:
    """List the choices of every config group, or of one: dpft ls task"""
    root = conf_dir()
    groups = sorted(path.name for path in root.iterdir() if path.is_dir())
    if group is not None:
        name = group if group in groups else group.removesuffix("s")
        if name not in groups:
            raise ConfigError(
                f"no config group {group!r}{suggestion(group, groups)}; expected one of "
                f"{', '.join(groups)}"
            )
        groups = [name]
    for name in groups:
        prefix = "+" if name in PRESETS else ""
        secho(f"{prefix}{name}=", bold=True)
        for file in sorted((root / name).glob("*.yaml")):
            echo(f"  {file.stem:<19} {summary(file)}")


def summary(file: Path) -> str:
    """The comment on the first line of a config file."""
    lines = [
        line for line in file.read_text(encoding="utf-8").splitlines() if "@package" not in line
    ]
    first = lines[0] if lines else ""
    return first.lstrip("# ") if first.startswith("#") else ""
