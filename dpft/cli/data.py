"""``dpft data``: where a task's data is, whether it can be read, and generated samples of it."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dpft.cli.output import progress_bar
from dpft.config.compose import compose
from dpft.config.errors import ConfigError, SplitError
from dpft.config.overrides import override
from dpft.config.schema import Run, parse
from dpft.report.terminal import echo
from dpft.tasks import load_task
from dpft.tasks.base import SPLITS, Task

_PLACES = {
    "hub": "no files here; the hub would be asked. Type task.data_dir=FOLDER, or set DPFT_DATA",
    "sample": "generated records (task.source=sample)",
}


def main(
    action: Annotated[
        str, typer.Argument(help="where (is it found?), check (read it all), or sample.")
    ] = "where",
    task_name: Annotated[str, typer.Argument(metavar="task", help="A task, such as e2e.")] = "e2e",
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings, such as task.train_file=FILE.")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Folder to write to, for sample.")] = None,
) -> None:
    """Find, check or generate a task's data: dpft data check e2e"""
    words = [f"task={task_name}", *(overrides or ())]
    if action == "sample":
        words.append("task.source=sample")
    if action not in ("where", "check", "sample") or "=" in task_name:
        raise ConfigError(
            f"got dpft data {action} {task_name}; expected one of where, check, sample, then a "
            "task, as in dpft data check text2text task.train_file=FILE"
        )
    run = parse(compose(words))
    task = load_task(run.task)
    if action == "sample":
        if to is None:
            raise ConfigError(f"no folder given; type dpft data sample {task_name} --to FOLDER")
        to.mkdir(parents=True)
        task.dataset.write_sample(to, task.sample_seed)
        for file in filter(Path.is_file, sorted(to.rglob("*"))):
            echo(f"{file}: {file.stat().st_size:,} bytes")
        typed = [f"task={task_name}", override("task.data_dir", str(to))]
        echo(f"use it with: {shlex.join(['dpft', 'train', *typed])}")
    elif action == "check":
        _check(run, task, any(word.startswith(("model=", "model.")) for word in words))
    else:
        kind, folder = task.location
        echo(f"{task_name}: {folder if folder is not None else _PLACES.get(kind, kind)}")


def _check(run: Run, task: Task, is_for_a_model: bool) -> None:
    """Read every split and print counts, and the first record as the model is given it."""
    lines = []
    # On a terminal: ten million rows take minutes.
    with progress_bar("reading {task.completed:,.0f} rows") as (bar, rows):
        task.advance_with(lambda count: bar.advance(rows, count))
        for split in SPLITS:
            try:
                records, instances = task.records(split), task.instances(split)
            except SplitError as error:
                if split == "train":
                    raise
                lines.append(f"{task.name} {split}: {error}")
                continue
            counts = f"{len(records):,} records, {len(instances):,} instances"
            lines.append(f"{task.name} {split}: {counts}")
            lines += [f"  {detail}" for detail in task.details(split)]
    for line in lines:
        echo(line)
    if is_for_a_model and type(task).rendered is not Task.rendered:
        from dpft.models.load import tokenizer_of

        echo(f"  as model={run.model.name} is given it; what is trained is in [[ ]]:")
        for line in (task.rendered(tokenizer_of(run.model, task.needs)) or "").splitlines():
            echo(f"    {line}")
