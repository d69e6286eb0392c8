"""Interleaved rounds in fresh processes, and the largest batch that fits a GPU.

Each variant runs in a fresh process, round after round in rotated order. Its steps alternate with
those of a process that trains without privacy, so that a machine whose speed changes from second to
second affects both equally. This process imports no torch.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import IO, Any, TypeVar

import dpft
from dpft.config.errors import DpftError
from dpft.reproduce.bench.catalog import BenchSettings, Variant

T = TypeVar("T")
Result = dict[str, Any]
Row = dict[str, Any]
RunJob = Callable[[Mapping[str, Any]], Result]
OpenSession = Callable[[Mapping[str, Any]], "WorkerProcess"]
# Called before each measurement: how many are done, how many there are, what comes next.
Progress = Callable[[int, int, str], None]

# These precede what a worker reports, whatever else it or a peer prints.
MARK = "dpft-bench-result "
READY = "dpft-bench-ready"
STEP = "dpft-bench-step "
PACKAGE = Path(dpft.__file__).resolve().parent
_TIMEOUT_SECONDS = 3600
LARGEST = 1 << 16
# The search ends when the largest batch that fits is known to within a fiftieth.
PRECISION = 50


@dataclass(frozen=True)
class Spread:
    """Median and range."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return None where nothing was measured."""
        return cls(median(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class VariantSummary:
    """One variant over all rounds; None where something was not measured or failed.

    Ratios are to the variant ``baseline`` in the same round; ``rounds`` is how many have one.
    ``seconds`` are of a step, ``peak_bytes`` the highest memory in use after warm-up.
    ``gradient_norm`` is the L2 norm of what the last step left as gradient: equal for all exact
    flat variants of equal tying. ``message`` is why it failed. A search for the largest ``batch``
    that fits (Li et al., Appendix G) has the smallest that is ``too_large``, unless `LARGEST` fits.
    """

    label: str
    peer: bool = False
    baseline: str = ""
    rounds: int = 0
    seconds: Spread | None = None
    time_ratio: Spread | None = None
    peak_bytes: Spread | None = None
    memory_ratio: Spread | None = None
    gradient_norm: float | None = None
    message: str | None = None
    batch: int | None = None
    too_large: int | None = None
    examples_per_second: float | None = None


class BenchError(DpftError):
    """A benchmark cannot go on."""


def run_job(job: Mapping[str, Any]) -> Result:
    """Run one job in a fresh process; ``status`` is ``died`` where that left no result."""
    return WorkerProcess(job).finish()


class WorkerProcess:
    """A worker in a process of its own, which takes the steps of a measurement on request."""

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
        """Let the worker end, and return its result."""
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


def measure(settings: BenchSettings, open_session: OpenSession, progress: Progress) -> list[Row]:
    """Return a row for each variant in each round: ``round``, ``load``, ``variant``, ``result``.

    ``settings.device`` is resolved.
    """
    variants = settings.variants
    rows: list[Row] = []
    for turn in range(settings.rounds):
        load = [round(average, 2) for average in os.getloadavg()]
        for variant, result in _one_round(settings, turn, open_session):
            if result is None:
                what = f"round {turn + 1}: {variant.label}"
                progress(len(rows), settings.rounds * len(variants), what)
                continue
            if variant == settings.baseline(variant) and result["status"] != "ok":
                raise BenchError(
                    f"non-private training of {settings.model} itself failed "
                    f"({result['message']}), and everything is measured against it: try a smaller "
                    "--batch or --length, or another --model"
                )
            rows.append({"round": turn, "load": load, "variant": variant.label, "result": result})
    progress(len(rows), len(rows), "done")
    return rows


def measure_runs(
    jobs: Mapping[str, Mapping[str, Any]],
    together: bool,
    open_session: OpenSession,
    progress: Progress,
) -> dict[str, Result]:
    """Return the results of jobs by label.

    ``together``: their steps take turns once all have warmed up, one job after the other.
    """
    found: dict[str, Result] = {}
    for group in [list(jobs)] if together else [[label] for label in jobs]:
        sessions: dict[str, WorkerProcess] = {}
        for label in group:
            progress(len(found) + len(sessions), len(jobs), label)
            sessions[label] = open_session(jobs[label])
            sessions[label].ready()
        for turn in range(jobs[group[0]]["steps"]):
            for session in rotated(list(sessions.values()), turn):
                session.step()
        found |= {label: session.finish() for label, session in sessions.items()}
    progress(len(jobs), len(jobs), "done")
    return found


def _one_round(
    settings: BenchSettings, turn: int, open_session: OpenSession
) -> Iterator[tuple[Variant, Result | None]]:
    """Yield each variant as it begins, with None, and when it is measured, with its result.

    A baseline runs as long as any variant is measured against it, and comes last. On a GPU, whose
    memory and time are not shared, each variant is measured by itself.
    """

    def finished(session: WorkerProcess, *, ready: bool) -> Result:
        for _ in range(settings.steps if ready else 0):
            session.step()
        return session.finish()

    baselines = [v for v in settings.variants if v == settings.baseline(v)]
    for base in rotated(baselines, turn):
        others = [v for v in settings.variants if v != base and settings.baseline(v) == base]
        yield base, None
        reference = open_session(settings.job("measure", base))
        if settings.device == "cuda":
            yield base, finished(reference, ready=reference.ready())
            for variant in rotated(others, turn):
                yield variant, None
                session = open_session(settings.job("measure", variant))
                yield variant, finished(session, ready=session.ready())
            continue
        ready, used = reference.ready(), False
        for variant in rotated(others, turn) if ready else []:
            yield variant, None
            session = open_session(settings.job("measure", variant))
            times = _alternate(reference, session, settings.steps)
            result = session.finish()
            if times:
                used, result = True, result | {"beside": times}
            elif result["status"] == "ok":
                break  # the reference ended meanwhile
            yield variant, result
        yield base, finished(reference, ready=ready and not used)


def _alternate(reference: WorkerProcess, session: WorkerProcess, steps: int) -> list[float]:
    """Take steps of both in turn; return the reference's seconds before, between and after."""
    times: list[float] = []
    if not session.ready():
        return times
    for _ in range(steps):
        seconds = reference.step()
        if seconds is None or session.step() is None:
            return []
        times.append(seconds)
    seconds = reference.step()
    return [*times, seconds] if seconds is not None else []


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """Return the items from the ``turn``-th on: over the rounds, each takes each place."""
    start = turn % len(items) if items else 0
    return [*items[start:], *items[:start]]


def largest_batches(
    settings: BenchSettings, run: RunJob, progress: Progress
) -> list[VariantSummary]:
    """Search for every variant's largest batch."""
    if settings.device != "cuda":
        raise BenchError(
            "--largest-batch needs a CUDA device, and this is a CPU, whose memory ends softly (by "
            "swapping): run it where there is a GPU, or leave it out"
        )
    variants = settings.variants
    return [
        _largest(settings, variant, run, partial(progress, place, len(variants)))
        for place, variant in enumerate(variants)
    ]


def _largest(
    settings: BenchSettings, variant: Variant, run: RunJob, progress: Callable[[str], None]
) -> VariantSummary:
    seconds: dict[int, float] = {}
    failed: list[str] = []

    def fits(batch: int) -> bool:
        progress(f"{variant.label}: batch {batch}")
        result = run(settings.job("fits", variant, batch=batch))
        if result["status"] == "ok":
            seconds[batch] = result["median_seconds"]
        elif result["status"] != "oom":
            failed.append(result["message"])
        return batch in seconds

    batch, larger = search(fits, settings.batch)
    if failed:
        return VariantSummary(variant.label, message=failed[0])
    speed = batch / seconds[batch] if batch else None
    return VariantSummary(variant.label, batch=batch, too_large=larger, examples_per_second=speed)


def search(fits: Callable[[int], bool], start: int) -> tuple[int, int | None]:
    """Return the largest batch that fits, and the smallest known not to: doubles, then halves."""
    low, high = 0, None
    probe = start
    while high is None or high - low > max(1, low // PRECISION):
        if fits(probe):
            low = probe
            if low >= LARGEST:
                return low, None
        else:
            high = probe
        probe = min(2 * low, LARGEST) if high is None else (low + high) // 2
    return low, high
