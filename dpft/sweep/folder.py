"""The folder of a sweep: what it was asked to do, what happened, and Hydra's own output."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError
from dpft.runs.atomic import write_atomic
from dpft.runs.errors import RunError, RunLockedError, disk_report
from dpft.runs.identity import config_hash
from dpft.runs.lock import DirectoryLock
from dpft.runs.wellformed import parse_json
from dpft.sweep.points import Plan, Point
from dpft.sweep.words import Words

VERSION = 1


@dataclass(frozen=True)
class SweepFolder:
    """``runs_dir/sweeps/NAME``; its runs lie beside it, under ``runs_dir``."""

    path: Path

    @property
    def description(self) -> Path:
        """What the sweep is, see `describe`."""
        return self.path / "sweep.json"

    @property
    def journal(self) -> Path:
        """What happened, see `dpft.sweep.journal`."""
        return self.path / "journal.jsonl"

    @property
    def log(self) -> Path:
        """What Hydra and the jobs printed."""
        return self.path / "log.txt"

    @property
    def list(self) -> Path:
        """A copy of the list of points, so that an edit of the original moves no point."""
        return self.path / "list.txt"

    @property
    def hydra(self) -> Path:
        """Hydra's own files."""
        return self.path / "hydra"

    @property
    def submitted(self) -> Path:
        """Submitit's files, a folder for each job that it handed to Slurm."""
        return self.hydra / ".submitit"

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
                f"the sweep {self.path} is running already; type dpft sweep --watch {self.path} to "
                "see how far it is"
            ) from None
        except OSError as error:
            raise RunError(
                f"cannot use {self.path} as a sweep's folder: {error}; expected one that can be "
                "written to: give another runs_dir"
            ) from error

    def describe(self, words: Words, lines: Sequence[Sequence[str]], plan: Plan) -> None:
        """Write what the sweep is; again, if it is the same.

        Raises:
            ConfigError: the folder holds a sweep of other words.
            RunError: the disk refused.
        """
        content = {
            "version": VERSION,
            "words": list(words.overrides),
            "config_dir": None if words.config_dir is None else str(words.config_dir),
            "list": [list(line) for line in lines],
            "metric": plan.metric,
            "points": None if plan.points is None else [self._entry(p) for p in plan.points],
        }
        if self.description.exists():
            self._check_same(content)
        try:
            write_atomic(self.description, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        except OSError as error:
            raise RunError(
                f"could not write {self.description}: {disk_report(self.path, error)}; free some "
                "space and run the same command again"
            ) from error

    def points(self) -> tuple[Point, ...] | None:
        """The points that are known beforehand; None where a sweeper chooses them.

        Raises:
            ConfigError: the folder holds no sweep, or a damaged one.
        """
        listed = self._read()["points"]
        if listed is None:
            return None
        try:
            return tuple(
                Point(
                    tuple(entry["overrides"]),
                    str(entry["digest"]),
                    self.inside(entry["run"]),
                    bool(entry["private"]),
                )
                for entry in listed
            )
        except (KeyError, TypeError) as error:
            raise self._damaged(error) from error

    def metric(self) -> str | None:
        """The score by which the runs are compared; None: the first of each run's split."""
        given = self._read().get("metric")
        return None if given is None else str(given)

    def outside(self, run: Path) -> str:
        """A run's directory seen from this folder, so that both may be moved together."""
        return os.path.relpath(run.absolute(), self.path.absolute())

    def inside(self, run: str) -> Path:
        """The inverse of `outside`."""
        return Path(os.path.normpath(self.path / run))

    def _entry(self, point: Point) -> dict[str, Any]:
        return {
            "overrides": list(point.overrides),
            "digest": point.digest,
            "run": self.outside(point.path),
            "private": point.private,
        }

    def _check_same(self, content: dict[str, Any]) -> None:
        before = self._read()
        for key in ("words", "config_dir", "list"):
            if before.get(key) != content[key]:
                raise ConfigError(
                    f"{self.path} holds another sweep ({key}: {before.get(key)}); give another "
                    "--name, or none. What is finished of it is not run again either way"
                )

    def _read(self) -> dict[str, Any]:
        try:
            content = parse_json(self.description.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{self.path} holds no sweep ({error}); expected a folder that dpft sweep made"
            ) from error
        except ValueError as error:
            raise self._damaged(error) from error
        if not isinstance(content, dict) or content.get("version") != VERSION:
            raise self._damaged(f"no description of version {VERSION}")
        if "points" not in content:
            raise self._damaged("no points")
        return content

    def _damaged(self, why: object) -> ConfigError:
        return ConfigError(
            f"{self.description} is damaged ({why}); delete the file and run the sweep's command "
            "again: runs do not depend on it"
        )


def default_name(words: Words, lines: Sequence[Sequence[str]]) -> str:
    """The same words and list, the same name."""
    given = [list(words.overrides), str(words.config_dir), [list(line) for line in lines]]
    return config_hash({"sweep": given})


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
