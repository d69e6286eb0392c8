"""Interleaved rounds of a benchmark, each measurement in a fresh process.

Steps of a variant alternate with those of a process that trains without privacy, so that a machine
whose speed changes from second to second affects both equally. This process imports no torch.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import dpft
from dpft.config.errors import DpftError
from dpft.reproduce.bench.choices import BASELINE, BenchSettings

Result = dict[str, Any]
OpenSession = Callable[[Mapping[str, Any]], "WorkerProcess"]
# Called before each measurement with what begins.
Progress = Callable[[str], None]

# These precede what a worker reports, whatever else it or a peer prints.
MARK = "dpft-bench-result "
READY = "dpft-bench-ready"
STEP = "dpft-bench-step "
PACKAGE = Path(dpft.__file__).resolve().parent
_TIMEOUT_SECONDS = 3600


class BenchError(DpftError):
    """A benchmark cannot go on."""


class WorkerProcess:
    """A worker in a separate process, which takes the steps of a measurement on request."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        threads = str(job["threads"])
        # The code that is running, whether installed or not.
        paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._errors: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            # -P: a folder of the user's that is named like a package must not take its place.
            [sys.executable, "-P", "-m", "dpft.reproduce.bench.worker", json.dumps(job)],
            env={
                "GOMP_SPINCOUNT": "3000",  # as `dpft.cli.app.main` sets it for training
                **os.environ,
                "OMP_NUM_THREADS": threads,
                "MKL_NUM_THREADS": threads,
                **({} if job["kind"] == "run" else {"HF_HUB_OFFLINE": "1"}),
                "TOKENIZERS_PARALLELISM": "false",
                "PYTHONPATH": os.pathsep.join(paths),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._timer = threading.Timer(_TIMEOUT_SECONDS, self._process.kill)
        self._timer.daemon = True
        self._timer.start()
        self._result: Result | None = None

    def ready(self) -> bool:
        """Wait until the worker has warmed up; return False if it ended instead."""
        return self._read(READY) is not None

    def step(self) -> float | None:
        """Return the seconds of one more step; None if the worker ended."""
        with contextlib.suppress(BrokenPipeError):  # it has ended
            self._requests.write("step\n")
            self._requests.flush()
        text = self._read(STEP)
        return None if text is None else float(text)

    def finish(self) -> Result:
        """Let the worker end; return its result, with ``status`` ``died`` where it left none."""
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        self._read(None)
        self._timer.cancel()
        code = self._process.wait()
        self._answers.close()
        if self._result is None:
            self._errors.seek(0)
            lines = [line.strip() for line in self._errors if line.strip()]
            how = f"signal {-code}" if code < 0 else f"status {code}"
            message = f"ended with {how}: {lines[-1] if lines else 'no message'}"
            self._result = {"status": "died", "message": message}
        self._errors.close()
        return self._result

    def _read(self, awaited: str | None) -> str | None:
        """Return what follows the awaited mark; None at the end of the output."""
        for line in self._answers:
            if awaited is not None and line.startswith(awaited):
                return line.removeprefix(awaited)
            if line.startswith(MARK):
                self._result = json.loads(line.removeprefix(MARK))
        return None


def environment(job: Mapping[str, Any]) -> Result:
    """Return what measurements run on: the resolved device, and the facts of the machine."""
    facts = WorkerProcess({**job, "kind": "environment"}).finish()
    if facts["status"] != "ok":
        raise BenchError(f"the benchmark cannot start: {facts['message']}")
    return facts


def measure(
    settings: BenchSettings, open_session: OpenSession, progress: Progress
) -> list[dict[str, Any]]:
    """Return a row for each variant in each round: ``round``, ``load``, ``variant``, ``result``.

    ``settings.device`` is resolved. The baseline runs as long as any variant is measured against
    it. On a GPU, whose memory and time are not shared, each variant is measured alone.
    """
    rows: list[dict[str, Any]] = []
    steps = settings.steps
    others = [name for name in settings.variants if name != BASELINE]

    def start(name: str, turn: int) -> WorkerProcess:
        progress(f"round {turn + 1} of {settings.rounds}: {name}")
        return open_session(settings.job("measure", name))

    for turn in range(settings.rounds):
        load = [round(average, 2) for average in os.getloadavg()]
        results: dict[str, Result] = {}
        reference = start(BASELINE, turn)
        ready, used = reference.ready(), False
        if settings.device == "cuda":
            results[BASELINE] = _alone(reference, steps if ready else 0)
        first = turn % max(1, len(others))  # over the rounds, each takes each place
        for name in [*others[first:], *others[:first]] if ready else ():
            session = start(name, turn)
            if settings.device == "cuda":
                results[name] = _alone(session, steps if session.ready() else 0)
                continue
            times = _alternate(reference, session, steps)
            results[name] = session.finish()
            if times:
                used = True
                results[name]["baseline_seconds"] = times
        if settings.device != "cuda":
            results[BASELINE] = _alone(reference, steps if ready and not used else 0)
        if (base := results[BASELINE])["status"] != "ok":
            raise BenchError(
                f"non-private training of {settings.model} itself failed ({base['message']}), and "
                "everything is measured against it: try a smaller --batch or --length, or another "
                "--model"
            )
        rows += [
            {"round": turn, "load": load, "variant": name, "result": result}
            for name, result in results.items()
        ]
    return rows


def _alone(session: WorkerProcess, steps: int) -> Result:
    for _ in range(steps):
        session.step()
    return session.finish()


def _alternate(reference: WorkerProcess, session: WorkerProcess, steps: int) -> list[float]:
    """Take steps of both in turn; return the reference's seconds before, between and after."""
    times: list[float] = []
    for place in range(steps + 1) if session.ready() else ():
        seconds = reference.step()
        if seconds is None or (place < steps and session.step() is None):
            return []
        times.append(seconds)
    return times


def measure_runs(
    jobs: Mapping[str, Mapping[str, Any]],
    together: Sequence[Sequence[str]],
    open_session: OpenSession,
    progress: Progress,
) -> dict[str, Result]:
    """Return the results of whole runs by label.

    Runs that are ``together`` take turns with their steps once all of them have warmed up.
    """
    found: dict[str, Result] = {}
    for group in together:
        sessions: dict[str, WorkerProcess] = {}
        for label in group:
            progress(label)
            sessions[label] = open_session(jobs[label])
            sessions[label].ready()
        for turn in range(jobs[group[0]]["steps"]):
            start = turn % len(group)  # over the turns, each takes each place
            for label in [*group[start:], *group[:start]]:
                sessions[label].step()
        found |= {label: session.finish() for label, session in sessions.items()}
    return found
