"""One point of a sweep, in a job that Hydra started: here, in a worker, or on another machine.

Heavy packages are imported only for runs that are not finished, so that a sweep that is started
again passes over its finished points quickly.
"""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from dpft.config.compose import compose
from dpft.config.errors import DivergedError, DpftError, RunLockedError
from dpft.config.overrides import setting_of
from dpft.config.schema import Sweep, build, parse
from dpft.report.terminal import echo
from dpft.runs.finished import is_finished, is_intact
from dpft.runs.folders import run_path
from dpft.runs.identity import config_hash
from dpft.runs.record import read_record
from dpft.sweep import folder as events
from dpft.sweep.folder import Event, SweepFolder
from dpft.sweep.points import read_list
from dpft.tasks.scores import score

# Seconds to wait for a run that is in use: a process that was killed may still be dying.
_WAIT = 10.0


def run_point(
    raw: Mapping[str, Any],
    typed: Sequence[str],
    search: Sequence[str],
    execute: Callable[[dict[str, Any]], None],
) -> float | None:
    """Make the run of one point, unless it is finished, and add events to the journal.

    Returns:
        The score that the sweep compares; None if the run failed or was skipped. Optuna takes None
        for a failed trial, whereas a nan would end the whole search.
    """
    settings = build(Sweep, raw["sweep"], "sweep")
    assert settings.folder is not None
    folder = SweepFolder(Path(settings.folder))
    journal = folder.journal
    overrides = tuple(word for word in typed if not setting_of(word).startswith("sweep."))
    event = partial(Event, overrides=overrides)
    try:
        if settings.list is not None and settings.point is not None:
            overrides = (*overrides, *read_list(Path(settings.list))[settings.point])
            event = partial(Event, overrides=overrides)
            raw = compose([*search, *overrides])
        # A run does not depend on the sweep that it is part of.
        run = parse({**raw, "sweep": asdict(Sweep())})
        path, digest = run_path(run), config_hash(run.identity())
        event = partial(event, run=folder.outside(path), digest=digest)
        # A sweep needs scores only, so models may be gone; a damaged run repairs itself.
        if not is_intact(path, digest):
            journal.add(event(events.STARTED))
            _patiently(lambda: execute(dict(run.raw)), lambda: is_finished(path, digest))
        journal.add(event(events.FINISHED))
        return score(read_record(path), settings.metric)[1]
    except RunLockedError as error:
        journal.add(event(events.SKIPPED, error=_sentence(error)))
        return None
    except Exception as error:
        kind = events.DIVERGED if isinstance(error, DivergedError) else events.FAILED
        journal.add(event(kind, error=_sentence(error)))
        label = " ".join(overrides) or "the defaults"
        if isinstance(error, DpftError):
            echo(f"dpft: {label}: {error}", err=True)
        else:
            traceback.print_exc()
        return None


def _patiently(run: Callable[[], None], is_done: Callable[[], bool]) -> None:
    """Run it, unless another process that has it finishes it meanwhile."""
    deadline = time.monotonic() + _WAIT
    while True:
        try:
            run()
            return
        except RunLockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
            if is_done():
                return


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, DpftError) else f"{type(error).__name__}: {text}".rstrip(": ")
