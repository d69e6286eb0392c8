"""``dpft data``: whether a task's data can be read, and generated samples of it."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dpft.cli.output import progress_bar
from dpft.config.compose import compose
from dpft.config.errors import ConfigError, SplitError
from dpft.config.overrides import override
from dpft.config.schema import parse
from dpft.report.terminal import echo
from dpft.tasks import load_task
from dpft.tasks.task import SPLITS, Task


def main(
    action: Annotated[
        str, typer.Argument(help="check (read it all), or sample (write generated records).")
    ] = "check",
    task_name: Annotated[str, typer.Argument(metavar="task", help="A task, such as e2e.")] = "e2e",
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings, such as task.train_file=FILE.")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Folder to write to, for sample.")] = None,
) -> None:
    """Check or generate a task's data: dpft data check e2e"""
    words = [f"task={task_name}", *(overrides or ())]
    if action == "sample":
        words.append("task.source=sample")
    if action not in ("check", "sample") or "=" in task_name:
        raise ConfigError(
            f"got dpft data {action} {task_name}; expected check or sample, then a "
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
        return
    kind, folder = task.location
    lines = [f"{task_name}: {kind if folder is None else folder}"]
    # On a terminal, since ten million rows take minutes.
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
    is_for_a_model = any(word.startswith(("model=", "model.")) for word in words)
    if is_for_a_model and type(task).rendered is not Task.rendered:
        from dpft.models.load import tokenizer_of

        echo(f"  as model={run.model.name} is given it; what is trained is in [[ ]]:")
        for line in (task.rendered(tokenizer_of(run.model, task.needs)) or "").splitlines():
            echo(f"    {line}")
