"""``dpft demo``: one job three times with the bundled model, and its scores."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dpft.config.compose import compose
from dpft.config.overrides import override
from dpft.config.schema import parse
from dpft.report.terminal import echo, secho

RUNS = {
    "pretrained": ["clip=none", "optim.steps=0"],
    "eps3": [],
    # Without privacy, small batches and one epoch are enough.
    "non-private": ["clip=none", "optim.batch_size=64", "optim.epochs=1", "optim.lr=1.0e-3"],
}


def main(
    folder: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/demo"),
) -> None:
    """Three short runs on generated data, offline: dpft demo

    The bundled model is scored as it is, after private training, and after training without
    privacy.
    """
    from dpft.report.comparison import show
    from dpft.training.run import run_experiment

    runs = []
    for name, overrides in RUNS.items():
        secho(f"\n{name}", bold=True, err=True)
        words = [*overrides, override("runs_dir", str(folder)), f"name={name}"]
        outcome = run_experiment(parse(compose(["+experiment=demo", *words])))
        runs.append((outcome.path, outcome.record))
    show(runs)
    echo("\nNext: their texts on one page, then a run with a smaller budget\n")
    echo(f"  dpft report {shlex.quote(str(folder))}\n  dpft train +experiment=demo eps=1")
