"""``dpft validate``: compose and check configurations without running them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dpft.cli.again import override
from dpft.cli.train import resumed
from dpft.config import folder
from dpft.config.compose import compose
from dpft.config.errors import ConfigError, NotInstalledError
from dpft.config.schema import parse
from dpft.report.terminal import echo

# Settings of Hydra itself, which are none of a run.
_HYDRAS = re.compile(r"[+~]*hydra[./]")
_NOT_PRIVATE = " (trains without privacy: eps is of no effect)"
_NO_SIZE = (
    " (the number of records is not known, so batch size and noise were not checked; type "
    "task.train_size=N)"
)


def main(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="As for train; none: every shipped config.")
    ] = None,
    config_dir: Annotated[
        Path | None,
        typer.Option(help="More choices of your own; without settings: each of these."),
    ] = None,
) -> None:
    """Check a configuration without running it: dpft validate task=e2e eps=3"""
    beside: list[str] = []
    own: list[list[str]] | None = None
    if config_dir is not None:
        own = [[choice] for choice in folder.own_choices(config_dir)]
        beside = [override("hydra.searchpath", [str(config_dir.absolute())])]
    for choice in [overrides] if overrides else shipped() if own is None else own:
        try:
            doubt = check([*beside, *choice])
        except NotInstalledError as error:
            if overrides:
                raise
            echo(f"not checked: {' '.join(choice)} ({error})")
            continue
        except ConfigError as error:
            if overrides:
                raise
            raise ConfigError(f"{' '.join(choice)}: {error}") from error
        echo(f"ok: {' '.join(choice) or 'the defaults'}{doubt}")


def shipped() -> list[list[str]]:
    """Every choice of every shipped config group, one at a time."""
    typed = [f"{folder.typed(g)}{name}" for g in folder.groups() for name in folder.choices(g)]
    needs = {"model=custom": ["model.path=FOLDER"]}
    return [[], *([one, *needs.get(one, ())] for one in typed)]


def check(overrides: Sequence[str]) -> str:
    """What a run of these overrides leaves open, in brackets; nothing, as a rule.

    Of a run that is resumed the size of the data was known, and checked, when the run began.

    Raises:
        ConfigError: unless a run of these overrides could start, as far as is known.
    """
    raw = compose(overrides)
    resumes = raw.get("resume") is not None
    if resumes:
        raw = resumed(raw, [word for word in overrides if not _HYDRAS.match(word)])
    run = parse(raw)
    from dpft.tasks import load_task

    load_task(run.task)  # before torch is imported, which takes seconds
    if resumes:
        return ""
    from dpft.training.mechanisms import make_mechanism, published_size

    if run.task.get("train_size") is None:  # data of one's own
        return _NO_SIZE
    make_mechanism(run, published_size(run))
    if not run.clip.private:
        return _NOT_PRIVATE
    from dpft.privacy.guarantee import weakness

    return "".join(f" ({said})" for said in weakness(run.privacy.epsilon))
