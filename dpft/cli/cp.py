"""``dpft cp``: recipes, and copies of them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dpft.config import recipes
from dpft.config.errors import ConfigError
from dpft.report.terminal import echo


def main(
    recipe: Annotated[str | None, typer.Argument(help="Which; none: list them.")] = None,
    file: Annotated[
        Path | None, typer.Argument(help="Where to put the copy; default: ./RECIPE.yaml.")
    ] = None,
) -> None:
    """List recipes, or copy one to change: dpft cp lora-chat-8b mine.yaml

    A recipe holds all settings of a job, with comments; dpft train --config mine.yaml runs it.
    """
    if recipe is None:
        width = max(map(len, recipes.names()))
        for name in recipes.names():
            echo(f"  {name:<{width}}  {recipes.summary(name)}")
        return
    text = recipes.text(recipe)
    file = file or Path(f"{recipe}.yaml")
    if file.is_dir():
        file = file / f"{recipe}.yaml"
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileNotFoundError as error:
        raise ConfigError(f"{file.parent} is no folder; expected one that is there") from error
    except FileExistsError as error:
        raise ConfigError(
            f"{file} is there already; expected a new file: type dpft cp {recipe} OTHER.yaml, or "
            "remove it"
        ) from error
    echo(f"{file}; change it, then type dpft train --config {shlex.quote(str(file))}")
