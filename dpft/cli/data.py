"""``dpft data``: where a task's data is, whether it reads, and how to get some."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpft.cli.output import progress_bar
from dpft.config.compose import compose
from dpft.config.errors import ConfigError, DataError, SplitError
from dpft.config.overrides import override
from dpft.config.schema import parse
from dpft.report.terminal import echo

if TYPE_CHECKING:
    from dpft.config.schema import Model
    from dpft.tasks.base import Task


def main(
    action: Annotated[
        str, typer.Argument(help="where (is it found?), check (read it all), get, or sample.")
    ] = "where",
    task_name: Annotated[str, typer.Argument(metavar="task", help="A task, such as e2e.")] = "e2e",
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings, such as task.train_file=FILE.")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Folder to write to, for get and sample.")] = None,
) -> None:
    """Find, check, fetch or generate a task's data: dpft data check e2e"""
    actions = {"where": _where, "check": _check, "get": _get, "sample": _sample}
    if action not in actions:
        raise ConfigError(f"got dpft data {action}; expected one of {', '.join(actions)}")
    if "=" in task_name:
        key, _, value = task_name.partition("=")
        rest = value if key == "task" else f"text2text {task_name}"
        raise ConfigError(
            f"got dpft data {action} {task_name}; expected the task first, as in dpft data "
            f"{action} {rest}"
        )
    if others := [word for word in overrides or () if word.startswith("task=")]:
        raise ConfigError(
            f"got {others[0]} beside the task {task_name}; expected one task: leave one of them out"
        )
    actions[action](task_name, overrides or (), to)


def _where(task_name: str, overrides: Sequence[str], to: Path | None) -> None:
    kind, folder = _task(task_name, overrides).location
    others = {
        "hub": "no files here; the hub would be asked. Type task.data_dir=FOLDER, or set DPFT_DATA",
        "sample": "generated records (task.source=sample)",
    }
    echo(f"{task_name}: {folder if folder is not None else others.get(kind, kind)}")


def _check(task_name: str, overrides: Sequence[str], to: Path | None) -> None:
    """Read every split, and count.

    Raises:
        DataError: at the end, if there are no training records to be had, or a split that is there
            cannot be read.
    """
    from dpft.tasks import load_task
    from dpft.tasks.base import SPLITS, Task

    run = parse(compose([f"task={task_name}", *overrides]))
    task = load_task(run.task)
    unusable = None
    lines = []
    # On a terminal: ten million rows take minutes.
    with progress_bar("reading {task.completed:,.0f} rows") as (bar, rows):
        task.keep_in(None, lambda count: bar.advance(rows, count))
        for split in SPLITS:
            try:
                records, instances = task.records(split), task.instances(split)
                details = task.details(split)
            except DataError as error:
                if split == "train" or not isinstance(error, SplitError):
                    unusable = unusable or error
                else:
                    lines.append(f"{task_name} {split}: {error}")
                continue
            lines += [
                f"{task_name} {split}: {len(records):,} records, {len(instances):,} instances"
            ]
            lines += [f"  {detail}" for detail in details]
    for line in lines:
        echo(line)
    if unusable is not None:
        raise unusable
    typed = any(word.startswith(("model=", "model.")) for word in overrides)
    if typed and type(task).rendered is not Task.rendered:
        _show_rendered(task, run.model)


def _show_rendered(task: Task, model: Model) -> None:
    """The first record as the model would be given it."""
    from dpft.models.load import tokenizer_of

    text = task.rendered(tokenizer_of(model, task.needs))
    if text is not None:
        echo(f"  as model={model.name} is given it; what is trained stands in [[ ]]:")
        for line in text.splitlines():
            echo(f"    {line}")


def _get(task_name: str, overrides: Sequence[str], to: Path | None) -> None:
    """Fetch the hub's copy and keep it as parquet, a form that the task reads."""
    from dpft.tasks.sources import save_hub

    folder = _folder(task_name, to)
    task = _task(task_name, [*overrides, "task.source=hub"])
    for file, rows in save_hub(task.dataset, task_name, folder):
        echo(f"{file}: {rows:,} rows")
    _advise(task_name, folder)


def _sample(task_name: str, overrides: Sequence[str], to: Path | None) -> None:
    """Write the generated sample in the published form, beside what the folder holds.

    Raises:
        DataError: if another file is where one would go, before any is written.
    """
    from dpft.tasks.sources import check_free

    task, folder = _task(task_name, [*overrides, "task.source=sample"]), _folder(task_name, to)
    try:
        with tempfile.TemporaryDirectory(prefix=".sample-", dir=folder) as name:
            made = Path(name)
            task.dataset.write_sample(made, task.sample_seed)
            new = [file for file in sorted(made.rglob("*")) if file.is_file()]
            files = {folder / file.relative_to(made): file for file in new}
            for file, written in files.items():
                check_free(file, written)
            for file, written in files.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                written.replace(file)
    except OSError as error:
        raise DataError(f"cannot write to {folder}: {error.strerror}") from error
    for file in files:
        echo(f"{file}: {file.stat().st_size:,} bytes")
    _advise(task_name, folder)


def _folder(task_name: str, to: Path | None) -> Path:
    if to is None:
        raise ConfigError(f"no folder given; type dpft data ... {task_name} --to FOLDER")
    to.mkdir(parents=True, exist_ok=True)
    return to


def _advise(task_name: str, folder: Path) -> None:
    words = [f"task={task_name}", override("task.data_dir", str(folder))]
    echo(f"use it with: {shlex.join(['dpft', 'train', *words])}")


def _task(name: str, overrides: Sequence[str]) -> Task:
    from dpft.tasks import load_task

    return load_task(parse(compose([f"task={name}", *overrides])).task)
