"""The folder of a sweep: its points, why runs failed, and Hydra's output.

Whether a run is finished, and its results, are in the run's folder.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ValidationError

from dpft.config.errors import ConfigError
from dpft.runs.atomic import write_atomic
from dpft.runs.identity import config_hash
from dpft.sweep.points import ParsedOverrides, SweepPlan, SweepPoint


class Failure(BaseModel, extra="forbid", strict=True):
    """``failures/HASH.json``: why a run failed since the sweep was last started."""

    error: str
    diverged: bool  # its weights were not finite, which typing the same again only repeats


class Description(BaseModel, extra="forbid", strict=True):
    """``sweep.json``: the arguments, and the points."""

    words: list[str]
    config_dir: str | None
    lines: list[list[str]]
    points: list[SweepPoint]


class SweepFolder:
    """``runs_dir/sweeps/NAME``; its runs are under ``runs_dir``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description = path / "sweep.json"  # what the sweep is, see `describe`
        self.failures = path / "failures"  # a file for each run that failed, named by its hash
        self.log = path / "log.txt"  # what Hydra and the jobs printed
        self.list = path / "list.txt"  # a copy, so that an edit of the original moves no point
        self.hydra = path / "hydra"  # Hydra's own files

    def describe(
        self, arguments: ParsedOverrides, lines: Sequence[Sequence[str]], plan: SweepPlan
    ) -> None:
        """Write the sweep's description; again, if it is the same sweep.

        Raises:
            ConfigError: the folder holds another sweep.
        """
        content = Description(
            words=list(arguments.overrides),
            config_dir=None if arguments.config_dir is None else str(arguments.config_dir),
            lines=[list(line) for line in lines],
            # Seen from this folder, so that both may be moved together.
            points=[replace(p, path=self._from_here(p.path)) for p in plan.points],
        )
        if self.description.exists():
            before = self._read()
            asked = (settings_of(before.words), before.config_dir, before.lines)
            if asked != (settings_of(content.words), content.config_dir, content.lines):
                raise ConfigError(
                    f"{self.path} holds another sweep ({' '.join(before.words)}); give another "
                    "--name, or none. What is finished of it is not run again either way"
                )
        write_atomic(self.description, content.model_dump_json(indent=1) + "\n")

    def points(self) -> tuple[SweepPoint, ...]:
        """Return the points.

        Raises:
            ConfigError: the folder holds no sweep, or a damaged one.
        """
        points = self._read().points
        return tuple(replace(p, path=Path(os.path.normpath(self.path / p.path))) for p in points)

    def fail(self, digest: str, failure: Failure) -> None:
        """Write why the run of this configuration failed."""
        self.failures.mkdir(exist_ok=True)
        # Of the owner: an error may quote the data.
        write_atomic(self.failures / f"{digest}.json", failure.model_dump_json(), mode=0o600)

    def failure(self, digest: str) -> Failure | None:
        """Return why the run of this configuration failed; None if it did not."""
        file = self.failures / f"{digest}.json"
        try:
            return Failure.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            return Failure(error=f"{file} cannot be read ({error}); see {self.log}", diverged=False)

    def forget_failures(self) -> None:
        """Remove the failures of an earlier start: those runs are tried again."""
        for file in self.failures.glob("*.json"):
            file.unlink()

    def _from_here(self, run: Path) -> Path:
        return Path(os.path.relpath(run.absolute(), self.path.absolute()))

    def _read(self) -> Description:
        try:
            return Description.model_validate_json(self.description.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{self.path} holds no sweep ({error}); expected a folder that dpft sweep made"
            ) from error
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError(
                f"{self.description} is damaged ({'.'.join(map(str, first['loc']))}: "
                f"{first['msg']}); delete the file and run the sweep's command again: runs do not "
                "depend on it"
            ) from error


def default_name(arguments: ParsedOverrides, lines: Sequence[Sequence[str]]) -> str:
    """Return one name for the same arguments and list, whatever the launcher."""
    words = settings_of(arguments.overrides)
    given = [words, str(arguments.config_dir), [list(line) for line in lines]]
    return config_hash({"sweep": given})


def settings_of(words: Iterable[str]) -> list[str]:
    """Return the words without those of Hydra's launcher, which say where runs are made."""
    where = ("hydra/launcher", "hydra.launcher")
    return [word for word in words if not word.lstrip("+~").startswith(where)]


def folder_of(runs_dir: Path, name: str) -> SweepFolder:
    """Return the folder of a sweep of this name, see `checked_name`."""
    return SweepFolder(runs_dir / "sweeps" / checked_name(name))


def checked_name(name: str) -> str:
    """Return ``name``; raise ConfigError if it is no plain folder name."""
    if not re.fullmatch(r"[\w][\w.+-]*", name):
        raise ConfigError(f"--name is {name!r}; expected letters, digits, '.', '-', '+' or '_'")
    return name
