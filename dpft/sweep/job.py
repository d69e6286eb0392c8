"""One point of a sweep, in a job that Hydra started: here, in a worker, or on another machine.

Heavy packages are imported only for runs that are not finished, so that a sweep that is started
again passes over its finished points quickly.
"""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpft.config.compose import compose
from dpft.config.errors import DivergedError, DpftError, RunLockedError
from dpft.config.overrides import setting_of
from dpft.config.schema import Sweep, build, parse
from dpft.report.terminal import echo
from dpft.runs.folders import is_finished, is_intact, run_path
from dpft.runs.identity import config_hash
from dpft.sweep.points import read_list
from dpft.sweep.sweep_folder import Failure, SweepFolder

# Seconds to wait for a run that is in use: a process that was killed may still be dying.
_WAIT = 10.0


def run_point(
    raw: Mapping[str, Any],
    typed: Sequence[str],
    execute: Callable[[dict[str, Any]], None],
) -> None:
    """Make the run of one point, unless it is finished; a failure is written to the folder."""
    settings = build(Sweep, raw["sweep"], "sweep")
    assert settings.folder is not None
    overrides = [word for word in typed if not setting_of(word).startswith("sweep.")]
    if settings.list is not None and settings.point is not None:
        overrides += read_list(Path(settings.list))[settings.point]
        raw = compose(overrides)
    # A run does not depend on the sweep that it is part of.
    run = parse({**raw, "sweep": asdict(Sweep())})
    path, digest = run_path(run), config_hash(run.identity())
    # A sweep needs scores only, so models may be gone; a damaged run repairs itself.
    if is_intact(path, digest):
        return
    try:
        _patiently(lambda: execute(dict(run.raw)), lambda: is_finished(path, digest))
    except Exception as error:
        text = " ".join(str(error).split())
        if isinstance(error, DpftError):
            echo(f"dpft: {' '.join(overrides) or 'the defaults'}: {error}", err=True)
        else:
            text = f"{type(error).__name__}: {text}".rstrip(": ")
            traceback.print_exc()
        failure = Failure(error=text, diverged=isinstance(error, DivergedError))
        SweepFolder(Path(settings.folder)).fail(digest, failure)


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
