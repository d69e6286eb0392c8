"""Fresh processes: each measurement starts with cold caches and memory of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dpft
from dpft.errors import DpftError

Result = dict[str, Any]
RunJob = Callable[[Mapping[str, Any]], Result]

# Before a worker's result, whatever else it or a peer prints.
MARK = "dpft-bench-result "
_PACKAGE = Path(dpft.__file__).resolve().parent
# What decides a measurement; tables and plots do not.
_MEASURED = (
    "privacy/**/*.py",
    "models/**/*.py",
    *(f"bench/{name}.py" for name in ("worker", "models", "steps", "peers", "memory")),
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
    # -P: a folder of the user's that is named like a package must not take its place.
    command = [sys.executable, "-P", "-m", "dpft.bench.worker", json.dumps(job)]
    try:
        done = subprocess.run(
            command,
            env=worker_environment(job["threads"]),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"status": "died", "message": f"took longer than {_TIMEOUT_SECONDS} seconds"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK):
            result: Result = json.loads(line.removeprefix(MARK))
            return result
    said = [line for line in done.stderr.splitlines() if line.strip()]
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
    return {"status": "died", "message": f"ended with {how}: {said[-1] if said else 'no message'}"}


def worker_environment(threads: int) -> dict[str, str]:
    """The environment that `dpft.cli.main` sets for training, with the number of threads."""
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
