"""``dpft validate``: compose and check configurations without running them."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from dpft.compose import compose
from dpft.config import conf_dir, parse


def main(overrides: Sequence[str]) -> None:
    """Check one configuration, or every shipped one."""
    for choice in [list(overrides)] if overrides else shipped():
        check(choice)
        typer.echo(f"ok: {' '.join(choice) or 'the defaults'}")


def shipped() -> list[list[str]]:
    """Every choice of every shipped config group, one at a time."""
    choices: list[list[str]] = [[]]
    for group in sorted(path for path in conf_dir().iterdir() if path.is_dir()):
        prefix = "+" if group.name == "experiment" else ""
        choices += [[f"{prefix}{group.name}={file.stem}"] for file in sorted(group.glob("*.yaml"))]
    return choices


def check(overrides: Sequence[str]) -> None:
    """Raise ConfigError unless a run of these overrides could start, as far as can be told."""
    run = parse(compose(overrides))
    from dpft.mechanisms import make_mechanism, published_size
    from dpft.tasks import TASKS, load_task

    if run.task["name"] in TASKS or ":" in run.task["name"]:  # others have a size only, so far
        load_task(run.task)
    if run.task.get("train_size") is not None:  # null: data of one's own, of unknown size
        make_mechanism(run, published_size(run))
