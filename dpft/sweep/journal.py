"""What happened in a sweep, one JSON line per event, appended by the jobs and by their parent."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError, DpftError
from dpft.runs.errors import disk_report
from dpft.runs.wellformed import parse_json

# Of the parent: a sweep was started, for the first time or again.
BEGUN = "begun"
# Of a job, about one run.
STARTED, FINISHED, DONE_BEFORE = "started", "finished", "already done"
FAILED, SKIPPED, STOPPED, IN_USE = "failed", "skipped", "stopped", "in use"
DIVERGED = "diverged"  # a failure that typing the same again only repeats
EVENTS = (BEGUN, STARTED, FINISHED, DONE_BEFORE, FAILED, DIVERGED, SKIPPED, STOPPED, IN_USE)


@dataclass(frozen=True)
class Event:
    """One line of a journal.

    Attributes:
        event: one of `EVENTS`.
        digest: the hash of a run's configuration; None of the whole sweep, and where a run has
            none since its settings are impossible.
        run: its directory, seen from the sweep's folder.
        overrides: its settings as typed, without those of the sweep.
        error: why it failed.
        time: when, in UTC.
        host: the machine.
        pid: the process.
    """

    event: str
    digest: str | None = None
    run: str | None = None
    overrides: tuple[str, ...] = ()
    error: str | None = None
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    @property
    def seconds(self) -> float:
        """Its time as seconds since 1970."""
        return datetime.fromisoformat(self.time).timestamp()


class Journal:
    """An append-only file of several processes, which a kill can tear only at its end.

    Args:
        path: the file; it is made by the first event.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, event: Event) -> None:
        """Append one event; it is on disk when this returns.

        Raises:
            DpftError: the disk refused.
        """
        line = json.dumps(asdict(event), ensure_ascii=False).encode() + b"\n"
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        try:
            # Its owner's alone: an error may quote the data.
            with os.fdopen(os.open(self._path, flags, 0o600), "r+b") as file:
                # One writer at a time, so an unfinished line is that of a dead one: it is cut off.
                fcntl.flock(file, fcntl.LOCK_EX)
                file.truncate(file.read().rfind(b"\n") + 1)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DpftError(
                f"could not write to {self._path}: {disk_report(self._path.parent, error)}; free "
                "some space and run the same command again"
            ) from error

    def read(self) -> list[Event]:
        """All events, oldest first; a torn last line is left out.

        Raises:
            ConfigError: a line is not one of a journal; names it.
        """
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(
                f"{self._path} cannot be read ({error.strerror}); expected the journal of a sweep. "
                "Remove it: runs do not depend on it"
            ) from error
        whole = data[: data.rfind(b"\n") + 1].splitlines()
        return [self._event(number, line) for number, line in enumerate(whole, start=1)]

    def attempt(self) -> list[Event]:
        """The events since the sweep was last started."""
        return latest_attempt(self.read())

    def _event(self, number: int, line: bytes) -> Event:
        try:
            value: dict[str, Any] = parse_json(line)
            event = Event(**{**value, "overrides": tuple(value["overrides"])})
            if event.event not in EVENTS:
                raise ValueError(f"event is {event.event!r}")
            datetime.fromisoformat(event.time)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{self._path}, line {number}: {error}; expected an event of a sweep. Remove the "
                "line: runs do not depend on it"
            ) from error
        return event


def latest_attempt(events: Sequence[Event]) -> list[Event]:
    """Those after the last `BEGUN`, or all of them."""
    starts = [index for index, event in enumerate(events) if event.event == BEGUN]
    return list(events[starts[-1] + 1 if starts else 0 :])
