"""``dpft export RUN``: the trained model as a folder that other tools load."""

from pathlib import Path
from typing import Annotated

import typer

from dpft.cli.options import RunFolder
from dpft.report.terminal import echo


def main(
    path: RunFolder,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Write the whole model, LoRA merged in."),
    ] = False,
    to: Annotated[
        Path | None, typer.Option(help="Folder to write. Default: export/ in the run's folder.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="Name of the adapter's base model, if the run's is not on a hub."),
    ] = None,
) -> None:
    """The model as a folder for other tools: dpft export RUN --merge

    Writes the weights, the tokenizer with its chat template, and the model card with the guarantee,
    but nothing from private/. transformers loads the model, and peft an adapter, without dpft.
    """
    from dpft.report.card import loader
    from dpft.report.comparison import print_guarantee
    from dpft.training.trained import export, loaded_run

    trained, folder = loaded_run(path), to or path / "export"
    shape = export(trained, folder, merge=merge, base=base)
    what = "a whole model" if shape.base is None else f"an adapter of {shape.base}"
    echo(f"{folder}: {what}")
    if code := loader(trained.record, shape):
        echo("\n" + code.replace("FOLDER", str(folder)) + "\n")
    print_guarantee(trained.record)
