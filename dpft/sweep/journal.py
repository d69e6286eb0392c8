"""What happened in a sweep, one JSON line per event, appended by the jobs and by their parent.

That a run is finished, and what came of it, is for its own folder to say. The journal has the rest:
which job works on a run, why a run failed, and which runs a sweeper has chosen.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from dpft.runs.log import Entry, Log, damaged, read_log

# Of the parent: a sweep was started, for the first time or again.
BEGUN = "begun"
# Of a job, about one run. What was finished before is not started.
STARTED, FINISHED, FAILED, SKIPPED = "started", "finished", "failed", "skipped"
DIVERGED = "diverged"  # a failure that typing the same again only repeats
FAILURES = (FAILED, DIVERGED)
EVENTS = (BEGUN, STARTED, FINISHED, SKIPPED, *FAILURES)
_REMEDY = "remove that line: runs do not depend on it"


@dataclass(frozen=True)
class Event:
    """One line of a journal.

    Attributes:
        event: one of `EVENTS`.
        digest: the hash of a run's configuration; None of the whole sweep, and where a run has
            none since its settings are impossible.
        run: its directory, seen from the sweep's folder.
        overrides: its settings as typed, without those of the sweep.
        error: why it failed or was skipped.
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
    """A `Log` of several processes.

    Args:
        path: the file; it is made by the first event.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, event: Event) -> None:
        """Append one event; it is on disk when this returns.

        Raises:
            LogError: the file cannot be written, or is damaged.
        """
        with Log(self._path, _REMEDY) as log:
            log.append(asdict(event))

    def read(self) -> list[Event]:
        """All events, oldest first.

        Raises:
            LogError: a line is not one of a journal; names it.
        """
        entries = read_log(self._path, _REMEDY) if self._path.exists() else []
        return [self._event(number, entry) for number, entry in enumerate(entries, start=1)]

    def attempt(self) -> list[Event]:
        """The events since the sweep was last started."""
        return latest_attempt(self.read())

    def _event(self, number: int, entry: Entry) -> Event:
        try:
            event = Event(**{**entry, "overrides": tuple(entry["overrides"])})
            if event.event not in EVENTS:
                raise ValueError(f"event is {event.event!r}")
            datetime.fromisoformat(event.time)
        except (ValueError, TypeError, KeyError) as error:
            raise damaged(self._path, number, f"no event of a sweep ({error})", _REMEDY) from error
        return event


def latest_attempt(events: Sequence[Event]) -> list[Event]:
    """Those after the last `BEGUN`, or all of them."""
    starts = [index for index, event in enumerate(events) if event.event == BEGUN]
    return list(events[starts[-1] + 1 if starts else 0 :])
