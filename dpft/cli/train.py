"""Training: Hydra composes the config, and `run_experiment` does the work."""

import shlex
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from dpft.cli.guard import one_message
from dpft.cli.options import Settings
from dpft.config import folder
from dpft.config.compose import compose, resolved
from dpft.config.errors import NO_STEP, AuditError, ConfigError
from dpft.config.folder import check_choices, conf_dir
from dpft.config.overrides import (
    check_budget,
    check_flags,
    hydra_errors,
    override,
    readable,
    setting_of,
)
from dpft.config.schema import Effect, Run, names_with, parse
from dpft.parallel.launch import check_launcher, check_processes, launched
from dpft.report.terminal import echo, secho, warn

# Hydra's flags that take a value.
_WITH_VALUE = ("--cfg", "-c", "--package", "-p", "--config-dir", "-cd")


def flags_first(arguments: Sequence[str]) -> list[str]:
    """Sort flags to the front: Hydra 1.3 refuses overrides that a flag separates."""
    flags: list[str] = []
    overrides: list[str] = []
    pending = iter(arguments)
    for word in pending:
        if not word.startswith("-") or word == "-":
            overrides.append(word)
        else:
            flags += [word, *([next(pending, "")] if word in _WITH_VALUE else [])]
    return [*flags, *overrides]


def train_verb(arguments: Settings = None) -> None:
    """Train, decode, score and record: dpft train task=e2e clip=ghost eps=3

    Takes Hydra overrides and flags in any order: -m (sweep), --cfg job, --config-dir DIR; and
    --config FILE (`dpft.cli.inputs`).
    """
    words = flags_first([readable(word) for word in arguments or ()])
    check_flags(words)
    for flag, place in pairwise([part for word in words for part in word.split("=", 1)]):
        if flag in ("--config-dir", "-cd"):
            check_choices(Path(place))
    if {"--help", "-h"} & {*words}:
        _show_help()
        return
    check_budget(words)
    import hydra
    from omegaconf import DictConfig, OmegaConf

    @hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    def job(config: DictConfig) -> None:
        from hydra.core.hydra_config import HydraConfig

        typed = HydraConfig.get().overrides
        if OmegaConf.select(config, "sweep.folder") is not None:
            from dpft.sweep.job import run_point

            run_point(resolved(config, typed.task), list(typed.task), execute)
            return
        with one_message():  # SystemExit; Hydra would print a traceback of any other exception
            raw: Any = resolved(config, typed.task)
            if raw.get("resume") is not None:
                raw = resumed(raw, list(typed.task))
            execute(raw)

    sys.argv = ["dpft train", *words]
    with hydra_errors():
        job()


def _show_help() -> None:
    """Print the help page with the comments of conf/config.yaml, without importing Hydra."""
    groups = "\n".join(f"{group}: {', '.join(folder.choices(group))}" for group in folder.groups())
    plain = {key for key, value in folder.main().items() if not isinstance(value, dict)}
    text = (conf_dir() / "config.yaml").read_text(encoding="utf-8")
    lines = [f"  {line}" for line in text.splitlines() if line.partition(":")[0] in plain]
    page = Path(__file__).with_name("train_help.txt").read_text(encoding="utf-8")
    echo(page.format(groups=groups, settings="\n".join(lines)))


def execute(raw: dict[str, Any]) -> None:
    """Run one composed config and print its scores."""
    run = parse(raw)
    from dpft.models.hub import check_model
    from dpft.models.needs import check_choice
    from dpft.tasks import load_task

    # These checks come before the import of torch, which takes seconds.
    task = load_task(run.task)
    check_choice(run.model, task.needs)
    check_model(run.model)
    if run.model.dtype == "nf4":
        from dpft.models.nf4 import check_nf4
        from dpft.training.devices import device_of

        check_nf4(device_of(run.device))
    check_processes(run, run.ranks or launched())  # by each rank too, seconds after its start
    if run.ranks is not None and run.ranks > 1 and launched() == 1:
        from dpft.sweep.ranks import run_ranks

        run_ranks(raw, run.ranks)
        return
    check_launcher(run.ranks)
    from dpft.report.console import Console
    from dpft.runs.directory import RunDirectory
    from dpft.runs.folders import run_path
    from dpft.training.mechanisms import read_data
    from dpft.training.progress import Progress

    data, path, alone = None, run_path(run), launched() == 1
    if alone and not run.force:
        RunDirectory.check(path, run.identity())  # again when it is opened, seconds later
    try:
        if alone and (run.force or not (path / "record.json").exists()):
            with Progress(verbosity=run.verbosity) as progress:
                data = read_data(run, task, progress)
        with Console(stderr=True).status("importing torch and transformers"):
            from dpft.plan.estimate import fitted
            from dpft.training.devices import device_of
            from dpft.training.run import run_experiment
        outcome = run_experiment(fitted(run, device_of(run.device)), data)
    except KeyboardInterrupt as stopped:
        if not path.exists():
            stopped.add_note(NO_STEP)
        raise
    from dpft.report.comparison import show

    if not outcome.record:  # another process of the run prints it
        return
    if outcome.already_done:
        warn(
            f"this configuration has already run: {outcome.path}. Type force=true to run it again "
            "(the old run is kept next to it; both spend privacy)",
            err=True,
        )
    show([(outcome.path, outcome.record)])
    if outcome.record.get("audit", {}).get("refuted"):
        raise AuditError(
            f"the audit refutes the guarantee of {outcome.path}; expected its lower bound below "
            "epsilon. Do not release the model; please report this with the record"
        )


def resumed(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the stored config of the run that ``resume=RUN`` names."""
    from dpft.runs.folders import check_no_trial, stored_config
    from dpft.training.trained import parse_stored

    path = Path(str(raw["resume"]))  # checked by `parse`
    given = dict.fromkeys(["resume", *map(setting_of, overrides)])
    if others := [key for key in given if key not in names_with(Run, Effect.EXECUTION)]:
        raise ConfigError(
            f"got {others[0]} next to resume={path}; a resumed run keeps its own settings: leave "
            "it out, or start another run"
        )
    check_no_trial(path)
    _, stored = stored_config(path)
    parse_stored(path, stored)
    return stored | {key: raw[key] for key in (*given, "sweep")}


RUNS = {
    "pretrained": ["clip=none", "optim.steps=0"],
    "eps3": [],
    # Without privacy, small batches and one epoch are enough.
    "non-private": ["clip=none", "optim.batch_size=64", "optim.epochs=1", "optim.lr=1.0e-3"],
}


def demo_verb(
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
