"""Hydra's multirun in a process group of its own, started, asked to stop, and ended for certain."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dpft.runs.closing import Closing
from dpft.sweep.lifeline import VARIABLE

# Seconds that a run has to end by itself after Ctrl-C.
_PATIENCE = 5.0


class Child(Closing):
    """``dpft train -m ...``, which ends when this object is closed or this process dies.

    The words are handed over on standard input: every user of the machine sees the arguments of a
    process, and of a selection's trials nobody may know even how many there are.

    Args:
        words: what follows ``dpft train -m``.
        log: what the process and its workers print is appended to this file.
    """

    def __init__(self, words: Sequence[str], log: Path) -> None:
        reading, self._writing = os.pipe()
        environment = {**os.environ, VARIABLE: str(reading), "PYTHONUNBUFFERED": "1"}
        try:
            # Its owner's alone: an error may quote the data.
            log.touch(mode=0o600)
            # A file without a name, since a pipe could fill up before anybody reads it.
            with log.open("ab") as output, tempfile.TemporaryFile("w+", encoding="utf-8") as typed:
                json.dump(["train", "-m", *words], typed)
                typed.seek(0)
                self._process = subprocess.Popen(
                    # -P: as the dpft script, which does not import from the working folder
                    [sys.executable, "-P", "-m", "dpft.cli.piped"],
                    stdin=typed,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(reading,),
                    process_group=0,
                    env=environment,
                )
        except BaseException:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)

    def wait(self, seconds: float) -> int | None:
        """The exit status once the process has ended, None if it has not after ``seconds``."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Interrupt it and give it a moment; then kill what is left of it and of its workers."""
        if self._process.poll() is None:
            self._signal(signal.SIGINT)
            self.wait(_PATIENCE)
        self._signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._writing)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
