"""The inputs of a run: choices, recipes and ``--config FILE``, checked settings, and data.

Choices and recipes are listed at once, so what only the others need is imported by their functions.
"""

import re
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dpft.cli.options import Settings
from dpft.config import folder
from dpft.config.errors import ConfigError, SplitError, one_of, suggestion
from dpft.config.foreign import regular
from dpft.config.overrides import check_budget, override, setting_of
from dpft.report.console import progress_bar, width_to_fit
from dpft.report.terminal import echo, secho

RECIPES = Path(__file__).parents[1] / "config/recipes"
FLAG = "--config"
# Values of several runs in Hydra's grammar, for dpft sweep --config FILE.
_SEVERAL = re.compile(r"(choice|range|interval|glob)\(.*\)")


def ls_verb(
    group: Annotated[
        str | None,
        typer.Argument(help="A group, such as clip, or a choice, such as clip=ghost."),
    ] = None,
) -> None:
    """List the choices of all config groups, or of one: dpft ls clip

    dpft ls clip=ghost shows the settings of a choice, with comments.
    """
    name, equals, choice = (group or "").lstrip("+").partition("=")
    groups = folder.groups()
    if group is not None:
        one_of("config group", name, groups)
    if equals:
        one_of(name, choice, folder.choices(name))
        echo((folder.conf_dir() / name / f"{choice}.yaml").read_text(encoding="utf-8"), nl=False)
        return
    width, indent = width_to_fit() or 10_000, " " * 22
    for one in groups if group is None else [name]:
        secho(typed(one), bold=True)
        for choice in folder.choices(one):
            line = f"  {choice:<19} {folder.summary(one, choice)}"
            echo(textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False))


def typed(group: str) -> str:
    """Return what is typed before a choice: ``task=``, ``+experiment=``."""
    return f"{'+' if group in folder.PRESETS else ''}{group}="


def recipe_verb(
    recipe: Annotated[str | None, typer.Argument(help="Its name. None: list all recipes.")] = None,
    file: Annotated[
        Path | None, typer.Argument(help="Where to write the copy. Default: ./RECIPE.yaml.")
    ] = None,
) -> None:
    """List recipes, or copy one to edit: dpft recipe lora-chat-8b mine.yaml

    A recipe is a commented file with all settings of a job. Run it with
    dpft train --config mine.yaml
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
    echo(f"wrote {file}; edit it, then type dpft train --config {shlex.quote(str(file))}")


def expanded(arguments: list[str]) -> list[str]:
    """Return the arguments with the settings of a file in the place of ``--config FILE``.

    A typed setting wins over the file. If another choice of a group is typed, the file's settings
    of that group are left out, since they belong to the file's choice.
    """
    words: list[str] = []
    for word in arguments:
        words += word.split("=", 1) if word.startswith(f"{FLAG}=") else [word]
    if FLAG not in words:
        return arguments
    at = words.index(FLAG)
    before, after = words[:at], words[at + 2 :]
    if FLAG in after or len(words) < at + 2 or "=" in words[at + 1]:
        raise ConfigError(f"{FLAG} takes one file, as in {FLAG} run.yaml")
    file = Path(words[at + 1])
    typed = {setting_of(word) for word in (*before, *after) if "=" in word}
    kept, dropped = list[str](), list[str]()
    for word in settings_in(file):
        parts = setting_of(word).split(".")
        groups = {
            "/".join(parts[:depth]) for depth in range(1, len(parts))
        }  # such as hydra/launcher
        if ".".join(parts) not in typed:
            (dropped if groups & typed else kept).append(word)
    if dropped:
        echo(f"left out of {file}, since another choice was typed: {' '.join(dropped)}", err=True)
    return [*before, *kept, *after]


def settings_in(file: Path) -> list[str]:
    """Return the settings of a file, each as it is typed."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        # Not PyYAML, which reads 1e-3 as text.
        content = OmegaConf.to_container(
            OmegaConf.create(regular(file).read_text("utf-8")), resolve=False
        )
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigError(
            f"cannot read {file} ({reason}); expected lines such as eps: 3. To start from a "
            "recipe type dpft recipe"
        ) from error
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"{file} has no settings; expected lines such as eps: 3")
    words = []
    for key, value in content.items():
        flat = isinstance(key, str) and re.fullmatch(r"[+~]{0,2}[\w./@-]+", key)
        if not flat or isinstance(value, dict):
            raise ConfigError(
                f"{file} has {str(key)[:40]!r}; expected each setting on a line, as it is typed, "
                "such as optim.lr: 0.001. To continue a run type resume=RUN"
            )
        several = isinstance(value, str) and _SEVERAL.fullmatch(value)
        name = str(key)
        words.append(f"{name}={value}" if several else override(name, value, literal=False))
    return words


def validate_verb(overrides: Settings = None) -> None:
    """Check settings without running them: dpft validate task=e2e eps=3

    Reads neither data nor model. dpft plan also builds the model, and simulates a step.
    """
    words = overrides or []
    notes = check(words)
    echo(f"ok: {' '.join(words) or 'the defaults'}{''.join(f' ({note})' for note in notes)}")


def check(overrides: Sequence[str]) -> list[str]:
    """Check a run of these overrides; return notes, on what could not be checked too."""
    from dpft.cli.train import resumed
    from dpft.config.compose import compose
    from dpft.config.defaults import origin_in_words
    from dpft.config.schema import parse
    from dpft.parallel.launch import check_processes, launched

    check_budget(overrides)
    raw = compose(overrides)
    resumes = raw.get("resume") is not None
    if resumes:
        raw = resumed(raw, overrides)
    run = parse(raw)
    from dpft.tasks import load_task

    load_task(run.task)
    check_processes(run, run.ranks or launched())
    if resumes:  # the size of its data was checked when the run started
        return []
    from dpft.training.mechanisms import known_size, with_any_noise

    notes, size = [], known_size(run)
    if size is not None:
        with_any_noise(run, size)
    else:  # data of one's own
        unknown = "the number of records is not known, so batch size and noise were not checked"
        notes.append(f"{unknown}; type task.train_size=N")
    if run.origin:
        notes.append(origin_in_words(run.origin))
    if not run.clip.private:
        notes.append("trains without privacy: eps has no effect")
    elif size is not None:
        from dpft.privacy.guarantee import weakness

        notes += weakness(run.privacy.epsilon)
    return notes


def data_verb(
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
    from dpft.config.compose import compose
    from dpft.config.schema import parse
    from dpft.tasks import load_task
    from dpft.tasks.task import SPLITS, Task

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
