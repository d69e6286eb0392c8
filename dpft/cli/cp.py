"""``dpft cp``: recipes, complete settings of common jobs in a commented file each, and copies."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dpft.config.errors import ConfigError, suggestion
from dpft.report.terminal import echo

RECIPES = Path(__file__).parents[1] / "config/recipes"


def main(
    recipe: Annotated[str | None, typer.Argument(help="Which; none: list them.")] = None,
    file: Annotated[
        Path | None, typer.Argument(help="Where to put the copy; default: ./RECIPE.yaml.")
    ] = None,
) -> None:
    """List recipes, or copy one to change: dpft cp lora-chat-8b mine.yaml

    A recipe holds all settings of a job, with comments; dpft train --config mine.yaml runs it.
    """
    known = {path.stem: path.read_text(encoding="utf-8") for path in sorted(RECIPES.glob("*.yaml"))}
    if recipe is None:
        width = max(map(len, known))
        for name, text in known.items():
            echo(f"  {name:<{width}}  {text.partition(chr(10))[0].lstrip('# ')}")
        return
    if recipe not in known:
        expected = f"expected one of {', '.join(known)}"
        raise ConfigError(f"there is no recipe {recipe!r}{suggestion(recipe, known)}; {expected}")
    file = file or Path(f"{recipe}.yaml")
    with file.open("x", encoding="utf-8") as stream:  # never over another file
        stream.write(known[recipe])
    echo(f"{file}; change it, then type dpft train --config {shlex.quote(str(file))}")
