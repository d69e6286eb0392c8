"""The folder of a sweep: its points, its journal, and Hydra's output.

Whether a run is finished, and its results, are in the run's folder. The journal, to which the jobs
and their parent append a JSON line for each event, has the rest: which job works on a run, why a
run failed, and which runs a sweeper has chosen.
"""

import os
import re
import shlex
import socket
from collections.abc import Iterable, Sequence
from dataclasses import asdict, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError
from pydantic.dataclasses import dataclass

from dpft.config.errors import ConfigError, RunLockedError
from dpft.runs.atomic import write_atomic
from dpft.runs.directory import DirectoryLock
from dpft.runs.identity import config_hash
from dpft.runs.log import Log, damaged, read_log
from dpft.sweep.points import ParsedOverrides, SweepPlan, SweepPoint

# Of the parent: a sweep was started, for the first time or again.
BEGAN = "began"
# Of a job, about one run. What was finished before is not started.
STARTED, FINISHED, FAILED, SKIPPED = "started", "finished", "failed", "skipped"
DIVERGED = "diverged"  # a failure that typing the same again only repeats
FAILURES = (FAILED, DIVERGED)
_EVENTS = (BEGAN, STARTED, FINISHED, SKIPPED, *FAILURES)
_REMEDY = "remove that line: runs do not depend on it"


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Event:
    """One line of a journal."""

    event: Annotated[str, StringConstraints(pattern="|".join(_EVENTS))]
    # The hash of a run's configuration; None for the whole sweep, and for impossible settings.
    digest: str | None = None
    run: str | None = None  # its directory, seen from the sweep's folder
    overrides: tuple[str, ...] = ()  # its settings as typed, without those of the sweep
    error: str | None = None  # why it failed or was skipped
    time: datetime = field(default_factory=lambda: datetime.now(UTC))
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)


class Journal:
    """A log of events to which several processes append; the first event makes the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, event: Event) -> None:
        """Append one event; it is on disk when this returns.

        Raises:
            LogError: the file cannot be written, or is damaged.
        """
        with Log(self._path, _REMEDY) as log:
            log.append(asdict(event) | {"time": event.time.isoformat(timespec="milliseconds")})

    def read(self) -> list[Event]:
        """Return all events, oldest first.

        Raises:
            LogError: a line is not one of a journal; names it.
        """
        found = []
        for number, entry in enumerate(read_log(self._path, _REMEDY), start=1):
            try:
                found.append(Event(**entry))
            except ValidationError as error:
                what = f"no event of a sweep ({_first(error)})"
                raise damaged(self._path, number, what, _REMEDY) from error
        return found


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def latest_attempt(events: Sequence[Event]) -> list[Event]:
    """Return the events since the sweep was last started."""
    starts = [index for index, event in enumerate(events) if event.event == BEGAN]
    return list(events[starts[-1] + 1 if starts else 0 :])


class Description(BaseModel, extra="forbid", strict=True):
    """``sweep.json``: the arguments, and the points that are known beforehand."""

    words: list[str]
    config_dir: str | None
    lines: list[list[str]]
    metric: str | None
    points: list[SweepPoint] | None


class SweepFolder:
    """``runs_dir/sweeps/NAME``; its runs are under ``runs_dir``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description = path / "sweep.json"  # what the sweep is, see `describe`
        self.journal = Journal(path / "journal.jsonl")
        self.log = path / "log.txt"  # what Hydra and the jobs printed
        self.list = path / "list.txt"  # a copy, so that an edit of the original moves no point
        self.hydra = path / "hydra"  # Hydra's own files

    def lock(self) -> DirectoryLock:
        """Be the only process that runs this sweep.

        Raises:
            RunLockedError: another one does.
        """
        try:
            return DirectoryLock.acquire(self.path)
        except RunLockedError:
            raise RunLockedError(
                f"the sweep {self.path} is running already; type dpft report "
                f"{shlex.quote(str(self.path))} to see its progress"
            ) from None

    def describe(
        self, arguments: ParsedOverrides, lines: Sequence[Sequence[str]], plan: SweepPlan
    ) -> None:
        """Write the sweep's description; again, if it is the same sweep.

        Raises:
            ConfigError: the folder holds another sweep.
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
            before = self._read()
            asked = (settings_of(before.words), before.config_dir, before.lines)
            if asked != (settings_of(content.words), content.config_dir, content.lines):
                raise ConfigError(
                    f"{self.path} holds another sweep ({' '.join(before.words)}); give another "
                    "--name, or none. What is finished of it is not run again either way"
                )
        write_atomic(self.description, content.model_dump_json(indent=1) + "\n")

    def points(self) -> tuple[SweepPoint, ...] | None:
        """Return the points that are known beforehand; None where a sweeper chooses them.

        Raises:
            ConfigError: the folder holds no sweep, or a damaged one.
        """
        points = self._read().points
        if points is None:
            return None
        return tuple(replace(point, path=self.inside(str(point.path))) for point in points)

    def metric(self) -> str | None:
        """Return the score by which the runs are compared; None: the first of each run's split."""
        return self._read().metric

    def outside(self, run: Path) -> str:
        """Return a run's directory seen from this folder, so that both may be moved together."""
        return os.path.relpath(run.absolute(), self.path.absolute())

    def inside(self, run: str) -> Path:
        """Return the inverse of `outside`."""
        return Path(os.path.normpath(self.path / run))

    def _read(self) -> Description:
        try:
            return Description.model_validate_json(self.description.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{self.path} holds no sweep ({error}); expected a folder that dpft sweep made"
            ) from error
        except ValidationError as error:
            raise ConfigError(
                f"{self.description} is damaged ({_first(error)}); delete the file and run the "
                "sweep's command again: runs do not depend on it"
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
