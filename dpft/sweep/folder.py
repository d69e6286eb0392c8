"""The folder of a sweep: what it was asked to do, what happened, and Hydra's own output."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from dpft.config.errors import ConfigError
from dpft.runs.atomic import write_atomic
from dpft.runs.errors import RunError, RunLockedError, disk_report
from dpft.runs.identity import config_hash
from dpft.runs.lock import DirectoryLock
from dpft.sweep.arguments import ParsedOverrides
from dpft.sweep.points import SweepPlan, SweepPoint


class Description(BaseModel, extra="forbid", strict=True):
    """``sweep.json``: what was typed, and the points that are known beforehand."""

    words: list[str]
    config_dir: str | None
    lines: list[list[str]]
    metric: str | None
    points: list[SweepPoint] | None

    def asked(self) -> dict[str, Any]:
        """What makes it this sweep and no other: what it runs, wherever it runs that."""
        words = settings_of(self.words)
        return {"words": words, "config_dir": self.config_dir, "lines": self.lines}


class SweepFolder:
    """``runs_dir/sweeps/NAME``; its runs lie beside it, under ``runs_dir``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description = path / "sweep.json"  # what the sweep is, see `describe`
        self.journal = path / "journal.jsonl"  # what happened, see `dpft.sweep.journal`
        self.log = path / "log.txt"  # what Hydra and the jobs printed
        self.list = path / "list.txt"  # a copy, so that an edit of the original moves no point
        self.hydra = path / "hydra"  # Hydra's own files
        self.submitted = self.hydra / ".submitit"  # a folder for each job handed to Slurm

    def lock(self) -> DirectoryLock:
        """Be the only process that runs this sweep.

        Raises:
            RunLockedError: another one does.
            RunError: the folder cannot be written to.
        """
        try:
            return DirectoryLock.acquire(self.path)
        except RunLockedError:
            raise RunLockedError(
                f"the sweep {self.path} is running already; type dpft sweep --watch "
                f"{shlex.quote(str(self.path))} to see how far it is"
            ) from None
        except OSError as error:
            raise RunError(
                f"cannot use {self.path} as a sweep's folder: {error}; expected one that can be "
                "written to: give another runs_dir"
            ) from error

    def describe(
        self, arguments: ParsedOverrides, lines: Sequence[Sequence[str]], plan: SweepPlan
    ) -> None:
        """Write what the sweep is; again, if it is the same.

        Raises:
            ConfigError: the folder holds another sweep.
            RunError: the file cannot be written.
        """
        points = None
        if plan.points is not None:
            points = [replace(p, path=Path(self.outside(p.path))) for p in plan.points]
        content = Description(
            words=list(arguments.overrides),
            config_dir=None if arguments.config_dir is None else str(arguments.config_dir),
            lines=[list(line) for line in lines],
            metric=plan.metric,
            points=points,
        )
        if self.description.exists():
            before, now = self._read().asked(), content.asked()
            for key, was in before.items():
                if was != now[key]:
                    raise ConfigError(
                        f"{self.path} holds another sweep ({key}: {was}); give another --name, or "
                        "none. What is finished of it is not run again either way"
                    )
        try:
            write_atomic(self.description, content.model_dump_json(indent=1) + "\n")
        except OSError as error:
            raise RunError(
                f"could not write {self.description}: {disk_report(self.path, error)}; free some "
                "space and run the same command again"
            ) from error

    def points(self) -> tuple[SweepPoint, ...] | None:
        """The points that are known beforehand; None where a sweeper chooses them.

        Raises:
            ConfigError: the folder holds no sweep, or a damaged one.
        """
        points = self._read().points
        if points is None:
            return None
        return tuple(replace(point, path=self.inside(str(point.path))) for point in points)

    def metric(self) -> str | None:
        """The score by which the runs are compared; None: the first of each run's split."""
        return self._read().metric

    def outside(self, run: Path) -> str:
        """A run's directory seen from this folder, so that both may be moved together."""
        return os.path.relpath(run.absolute(), self.path.absolute())

    def inside(self, run: str) -> Path:
        """The inverse of `outside`."""
        return Path(os.path.normpath(self.path / run))

    def _read(self) -> Description:
        try:
            return Description.model_validate_json(self.description.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{self.path} holds no sweep ({error}); expected a folder that dpft sweep made"
            ) from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigError(
                f"{self.description} is damaged ({where}: {first['msg']}); delete the file and run "
                "the sweep's command again: runs do not depend on it"
            ) from error


def default_name(arguments: ParsedOverrides, lines: Sequence[Sequence[str]]) -> str:
    """The same arguments and list, the same name, on whatever launcher."""
    words = settings_of(arguments.overrides)
    given = [words, str(arguments.config_dir), [list(line) for line in lines]]
    return config_hash({"sweep": given})


def settings_of(words: Iterable[str]) -> list[str]:
    """Words for Hydra without those of its launcher, which say where something runs, not what."""
    where = ("hydra/launcher", "hydra.launcher")
    return [word for word in words if not word.lstrip("+~").startswith(where)]


def folder_of(runs_dir: Path, name: str) -> SweepFolder:
    """Where a sweep of this name lies.

    Raises:
        ConfigError: for a name that is no plain folder name.
    """
    return SweepFolder(runs_dir / "sweeps" / checked_name(name))


def checked_name(name: str) -> str:
    """The name of ``--name``, if it is a plain folder name.

    Raises:
        ConfigError: it is none.
    """
    if not re.fullmatch(r"[\w][\w.+-]*", name):
        raise ConfigError(f"--name is {name!r}; expected letters, digits, '.', '-', '+' or '_'")
    return name
