"""One run by several processes of this machine, for a job that started as one process.

The job starts torchrun, waits, and reads the result. It imports no torch, to leave memory for its
ranks.

torchrun puts each rank into a separate session, which no signal to the job's process group reaches.
So each rank waits for a lock that the job holds: once the job is gone, even by SIGKILL, the kernel
releases the lock and the rank ends itself. That is safe, since runs survive any kill.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpft.config import errors
from dpft.config.errors import ConfigError, DpftError, RankError, TrainingError
from dpft.parallel.launch import check_launcher
from dpft.report.terminal import echo

_RUN, _ALIVE, _ENDED = "run.json", "alive", "ended.json"
_PATIENCE = 15.0  # seconds that torchrun has to end its ranks, which finish a step and save it
_TERMINATED = 128 + signal.SIGTERM
_TERMINATED_BY = (-signal.SIGTERM, _TERMINATED)  # statuses of ranks


def run_ranks(raw: Mapping[str, Any], ranks: int) -> None:
    """Make the run of a composed config with ``ranks`` processes, at least 2, and wait for it.

    Raises:
        DpftError: what a rank raised; a TrainingError if a rank ended otherwise.
        SystemExit: torchrun or its ranks received SIGTERM, as Slurm sends it to all processes of a
            job that it ends or requeues. Submitit's process ignores it, and would take an error for
            the result of a job that is about to start again.
    """
    check_launcher()
    # Readable by its owner alone, as are the settings of a secret trial.
    with tempfile.TemporaryDirectory(prefix="dpft-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / _RUN).write_text(json.dumps(raw), encoding="utf-8")
        with (folder / _ALIVE).open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            status = _torchrun(folder, ranks)
        ended: dict[str, int] = {}  # by rank: those that torchrun saw fail
        with contextlib.suppress(FileNotFoundError):
            ended = json.loads((folder / _ENDED).read_text("utf-8"))
        own = {rank: end for rank, end in ended.items() if end not in _TERMINATED_BY}
        if status == _TERMINATED or (ended and not own):
            echo(
                "dpft: the ranks were ended by SIGTERM; the same command continues from the last "
                "checkpoint",
                err=True,
            )
            raise SystemExit(_TERMINATED)
        if status:
            raise _error(folder, own)


def read_run(folder: Path) -> dict[str, Any]:
    """Return, in a rank, the composed config."""
    raw: dict[str, Any] = json.loads((folder / _RUN).read_text(encoding="utf-8"))
    return raw


def end_with_job(folder: Path) -> None:
    """In a rank: end, with all its processes, once the job is gone."""
    # Opened at once: where the job is gone already, so is the file.
    held = (folder / _ALIVE).open()

    def follow() -> None:
        fcntl.flock(held, fcntl.LOCK_SH)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=follow, name="lifeline", daemon=True).start()


def report_error(folder: Path, rank: int, error: Exception) -> None:
    """In a rank: write the error to a file for the job."""
    kinds = (kind for kind in (RankError, ConfigError) if isinstance(error, kind))
    kind = next(kinds, type(error))  # those that are made of a text
    report = [kind.__name__, " ".join(f"{error}".split())]
    (folder / f"error-{rank}.json").write_text(json.dumps(report), encoding="utf-8")


def report_ends(folder: Path, statuses: Mapping[int, int]) -> None:
    """In torchrun: write the exit statuses of ranks that failed; minus a signal's number."""
    (folder / _ENDED).write_text(json.dumps(dict(statuses)), encoding="utf-8")


def _torchrun(folder: Path, ranks: int) -> int:
    """Run torchrun, and return its exit status."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}  # as the dpft script: -P, for ranks too
    environment.setdefault("OMP_NUM_THREADS", "1")  # torchrun would, with a warning
    command = [sys.executable, "-P", "-m", "dpft.cli.children", str(folder), str(ranks)]
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
            process.kill()
            process.wait()


def _error(folder: Path, ended: Mapping[str, int]) -> DpftError:
    """Return the error of a rank that did not only follow another one.

    ``ended`` are exit statuses by rank, without those of ranks that torchrun ended itself.
    """
    reports = [json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("error-*.json"))]
    for kind, text in reports:
        if kind != RankError.__name__:  # which a rank raises because another one failed
            made = getattr(errors, kind, None)
            return made(text) if made else TrainingError(f"{kind}: {text}")
    if ended:
        named = ", ".join(
            f"rank {rank} ended with status {status}"
            if status >= 0
            else f"rank {rank} was ended by {signal.Signals(-status).name}"
            for rank, status in ended.items()
        )
        return TrainingError(
            f"{named}; see what the ranks printed. The same command continues from the last "
            "checkpoint"
        )
    if reports:
        return TrainingError(reports[0][1])
    return TrainingError(
        "torchrun ended before its ranks started; see what it printed, and type the same command "
        "again"
    )
