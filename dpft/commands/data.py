"""``dpft data``: where a task's data is, whether it reads, and how to get some."""

from __future__ import annotations

import csv
from pathlib import Path

import typer

from dpft.compose import compose
from dpft.config import parse
from dpft.errors import ConfigError, DataError

SPLITS = ("train", "dev", "test")


def main(action: str, task_name: str, to: Path | None) -> None:
    """Run one of the actions: where, check, get, sample."""
    actions = {"where": _where, "check": _check, "get": _get, "sample": _sample}
    if action not in actions:
        raise ConfigError(f"got dpft data {action}; expected one of {', '.join(actions)}")
    actions[action](task_name, to)


def _where(task_name: str, to: Path | None) -> None:
    task = _task(task_name, [])
    kind, folder = task.location
    typer.echo(f"{task_name}: {folder if folder is not None else kind}")


def _check(task_name: str, to: Path | None) -> None:
    task = _task(task_name, [])
    for split in SPLITS:
        typer.echo(
            f"{task_name} {split}: {len(task.records(split)):,} records, "
            f"{len(task.prompts(split)):,} instances"
        )


def _get(task_name: str, to: Path | None) -> None:
    """Fetch from the hub and keep it in the published file format."""
    _write(task_name, to, "hub")


def _sample(task_name: str, to: Path | None) -> None:
    _write(task_name, to, "sample")


def _write(task_name: str, to: Path | None, source: str) -> None:
    if to is None:
        raise ConfigError(f"no folder given; type dpft data ... {task_name} --to FOLDER")
    task = _task(task_name, [f"task.source={source}"])
    to.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        rows, file = task.rows(split), to / task.files[split]
        try:
            with file.open("w", encoding="utf-8", newline="") as out:
                writer = csv.writer(out)
                writer.writerow(task.columns)
                writer.writerows(rows)
        except OSError as error:
            raise DataError(f"cannot write {file}: {error.strerror}") from error
        typer.echo(f"{file}: {len(rows):,} rows")
    typer.echo(f"use it with: dpft train task={task_name} task.data_dir={to}")


def _task(name: str, overrides: list[str]):  # type: ignore[no-untyped-def]
    from dpft.tasks import load_task

    return load_task(parse(compose([f"task={name}", *overrides])).task)
