"""``dpft decode RUN``: decode again with other settings, without training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from dpft.config import Decode, build, parse
from dpft.errors import ConfigError


def main(path: Path, overrides: Sequence[str]) -> None:
    """Decode a trained run again and record where the texts lie."""
    import yaml

    from dpft import runs
    from dpft.models import load_model
    from dpft.predictions import predict, write_predictions
    from dpft.progress import Progress
    from dpft.tasks import load_task

    runs.read_record(path)
    text = (path / "config.yaml").read_text()
    run = parse(yaml.safe_load(text))
    settings = build(Decode, {**dataclasses.asdict(run.decode), **_parsed(overrides)}, "decode")
    changed = "-".join(
        f"{field.name}={getattr(settings, field.name)}"
        for field in dataclasses.fields(Decode)
        if field.name != "split"
        and getattr(settings, field.name) != getattr(run.decode, field.name)
    )
    name = "-".join(part for part in (settings.split, changed) if part)
    task = load_task(run.task)
    with runs.RunDirectory.open(path, run.identity(), text) as directory, Progress() as progress:
        trained = dataclasses.replace(
            run.model, path=str(directory.model), init="pretrained", tied=None
        )
        loaded = load_model(trained, task.needs, run.seed)
        file = directory.generations(name)
        write_predictions(file, predict(task, loaded, settings, run.seed, progress))
        relative = str(file.relative_to(directory.path))
        runs.update_record(directory, generations={name: relative})
    typer.echo(f"{file}\nscore it with: dpft score {path}")


def _parsed(overrides: Sequence[str]) -> dict[str, Any]:
    import yaml

    values = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not key.startswith("decode.") or not equals:
            raise ConfigError(
                f"got {override!r}; only decoding can be changed after training: expected "
                "decode.NAME=VALUE, for instance decode.beams=1"
            )
        values[key.removeprefix("decode.")] = yaml.safe_load(value)
    return values
