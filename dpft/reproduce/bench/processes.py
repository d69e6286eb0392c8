"""Fresh processes: each measurement starts with cold caches and memory of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import dpft
from dpft.config.errors import DpftError

Result = dict[str, Any]
RunJob = Callable[[Mapping[str, Any]], Result]
OpenSession = Callable[[Mapping[str, Any]], "WorkerProcess"]

# Before what a worker says, whatever else it or a peer prints.
MARK = "dpft-bench-result "
READY = "dpft-bench-ready"
STEP = "dpft-bench-step "
_PACKAGE = Path(dpft.__file__).resolve().parent
# What decides a measurement; tables and plots do not.
_MEASURED = (
    "privacy/**/*.py",
    "models/**/*.py",
    *(f"reproduce/bench/{name}.py" for name in ("worker", "models", "steps", "peers", "memory")),
)
_TIMEOUT_SECONDS = 3600


class BenchError(DpftError):
    """A benchmark cannot go on."""


def run_job(job: Mapping[str, Any]) -> Result:
    """Run one job in a fresh process.

    Returns:
        The worker's result; ``status`` is ``died`` where the process left none, as when the
        system killed it for its memory.
    """
    return WorkerProcess(job).finish()


class WorkerProcess:
    """A worker in a process of its own, which for a measurement takes its steps when told to.

    Two sessions whose steps alternate see the same moods of a shared machine.
    """

    def __init__(self, job: Mapping[str, Any]) -> None:
        # -P: a folder of the user's that is named like a package must not take its place.
        command = [sys.executable, "-P", "-m", "dpft.reproduce.bench.worker", json.dumps(job)]
        self._errors: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            env=worker_environment(job["threads"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._timer = threading.Timer(_TIMEOUT_SECONDS, self._process.kill)
        self._timer.daemon = True
        self._timer.start()
        self._result: Result | None = None

    def ready(self) -> bool:
        """Wait until the worker has warmed up; False if it ended instead."""
        return self._read(READY) is not None

    def step(self) -> float | None:
        """Seconds of one more step; None if the worker ended."""
        self._write("step\n")
        text = self._read(STEP)
        return None if text is None else float(text)

    def finish(self) -> Result:
        """Let the worker end, and give its result."""
        self._write("")
        self._read(None)
        self._timer.cancel()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self._result is None:
            self._result = {"status": "died", "message": self._last_words()}
        self._errors.close()
        return self._result

    def _write(self, text: str) -> None:
        assert self._process.stdin is not None
        try:
            if text:
                self._process.stdin.write(text)
                self._process.stdin.flush()
            else:
                self._process.stdin.close()
        except (BrokenPipeError, ValueError):  # it has ended, or was told to
            return

    def _read(self, awaited: str | None) -> str | None:
        """What follows the awaited mark; None at the end of the output, whose result is kept."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if awaited is not None and line.startswith(awaited):
                return line.removeprefix(awaited)
            if line.startswith(MARK):
                self._result = json.loads(line.removeprefix(MARK))
        return None

    def _last_words(self) -> str:
        code = self._process.returncode
        self._errors.seek(0)
        said = [line.strip() for line in self._errors if line.strip()]
        how = f"signal {-code}" if code < 0 else f"status {code}"
        return f"ended with {how}: {said[-1] if said else 'no message'}"


def worker_environment(threads: int) -> dict[str, str]:
    """The environment that `dpft.cli.app.main` sets for training, with the number of threads."""
    # The code that is running, whether installed or not.
    paths = [str(_PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "GOMP_SPINCOUNT": "3000",
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(paths),
    }


def code_fingerprint(package: Path = _PACKAGE) -> str:
    """Of the code that is measured; measurements of other code are not continued."""
    digest = hashlib.sha256()
    for pattern in _MEASURED:
        for file in sorted(package.glob(pattern)):
            digest.update(file.relative_to(package).as_posix().encode() + b"\0")
            digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
