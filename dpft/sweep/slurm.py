"""Jobs that Slurm has dropped: who waits for their results would wait for ever.

Submitit asks ``sacct`` how its jobs are. Where a cluster keeps no accounts it gets no answer, and
takes a job that ``scancel`` or a failing node has ended for one that runs. The queue knows better.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

# Seconds between two questions. Twice in a row a job must be gone without a result: a shared disk
# may show results late.
_EVERY = 30.0
_PATIENCE = 20.0  # for an answer


def _answer(command: list[str]) -> str | None:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


class Queue:
    """Knows which of a sweep's jobs have ended without a result.

    Args:
        folder: where Submitit keeps its files, below the sweep's own.
        every: seconds between two questions to Slurm.
        ask: runs a command; its output, or None if it failed.
    """

    def __init__(
        self,
        folder: Path,
        every: float = _EVERY,
        ask: Callable[[list[str]], str | None] = _answer,
    ) -> None:
        self._folder = folder
        self._every = every
        self._ask = ask
        self._next = time.monotonic() + every
        self._gone: set[str] = set()  # at the last question
        self._earlier = self._submitted()  # by another attempt: not waited for

    def lost(self) -> list[str]:
        """Jobs that Slurm no longer knows, once nothing else is waited for; usually none."""
        if time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + self._every
        jobs = self._submitted() - self._earlier
        waited = {job for job in jobs if not any(self._folder.glob(f"{job}/*_result.pkl"))}
        if not waited:
            return []
        queued = self._ask(["squeue", "--me", "--noheader", "--array", "--format=%i"])
        if queued is None:
            return []
        # Where there are accounts, Submitit finds out by itself, and says more.
        if self._ask(["sacct", "--noheader", f"--jobs={min(waited)}"]) is not None:
            return []
        before, self._gone = self._gone, waited - set(queued.split())
        return sorted(waited) if waited == self._gone and waited <= before else []

    def _submitted(self) -> set[str]:
        return {file.parent.name for file in self._folder.glob("*/*_submitted.pkl")}
