"""``dpft bench --run`` in a worker: the session of a run, whose steps are timed on request."""

import cProfile
import pstats
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.runs.directory import RunDirectory
from dpft.runs.folders import run_path
from dpft.runs.log import read_log
from dpft.tasks import load_task
from dpft.training.loop import Phase
from dpft.training.progress import Progress
from dpft.training.session import Session
from dpft.training.setup import prepare

WARM_UP = 6
"""Steps before those that are timed: a shape is compiled when it is first met."""
_PROFILED = 3  # the last of these


class _MeasuredError(Exception):
    """Ends the training, since all steps were measured."""


class Laps:
    """Receives the phases of all steps, see ``lap`` of `dpft.training.loop.train`.

    Args:
        requests: yields once for each step to time, what is called with its seconds.
        cuda: whether every other timed step is to wait for the device after each phase. So a phase
            has the time of its own kernels; the steps between run as in training.

    Attributes:
        steps: seconds by phase of each timed step.
        calls: function calls of Python in each step that was profiled.
    """

    def __init__(self, requests: Iterable[Any], cuda: bool) -> None:
        self.steps: list[Mapping[str, float]] = []
        self.calls: list[int] = []
        self._requests, self._cuda, self._done = iter(requests), cuda, 0
        self._report: Any = None
        self._profile = cProfile.Profile()
        self._seconds: dict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    def __call__(self, phase: Phase) -> None:
        """Note the end of a phase; after the last one of a step, wait for the next request."""
        if self._cuda and (phase == "logs" or len(self.steps) % 2):
            torch.cuda.synchronize()
        self._seconds[phase] += time.perf_counter() - self._since
        if phase == "logs":
            self._end_step()
        self._since = time.perf_counter()

    def _end_step(self) -> None:
        self._profile.disable()
        if self._report is not None:
            self.steps.append(self._seconds)
            self._report(sum(self._seconds.values()))
        elif self._done >= WARM_UP - _PROFILED:
            stats: Any = pstats.Stats(self._profile)
            self.calls.append(stats.total_calls)
        self._seconds = defaultdict(float)
        self._done += 1
        if self._done >= WARM_UP:
            self._report = next(self._requests, None)
            if self._report is None:
                raise _MeasuredError
        elif self._done >= WARM_UP - _PROFILED:
            self._profile = cProfile.Profile()
            self._profile.enable()


def measure(job: Mapping[str, Any], requests: Iterable[Any]) -> dict[str, Any]:
    """Train as `dpft train` does in a new folder, and time the steps that are requested.

    Raises:
        ConfigError: the run has fewer than ``job["steps"]`` steps after those that warm up.
    """
    run = parse(compose(job["settings"]))
    with (
        warnings.catch_warnings(record=True) as warned,
        RunDirectory.open(run_path(run), run.identity(), "") as directory,
        Progress(quiet=True) as progress,
    ):
        warnings.simplefilter("default")
        prepared = prepare(run, load_task(run.task), directory, progress)
        clipper, mechanism = prepared.parts.clipper, prepared.parts.mechanism
        if mechanism.steps < (needed := WARM_UP + job["steps"] + 1):
            raise ConfigError(
                f"the run has {mechanism.steps} steps; expected at least {needed}, of which "
                f"{WARM_UP} warm up: type optim.steps={needed}"
            )
        parameters = list(clipper.parameters.values())
        laps = Laps(requests, parameters[0].is_cuda)
        session = Session(run, prepared, directory, progress, lap=laps)
        with session, suppress(_MeasuredError):
            session.train()
        logged = read_log(directory.metrics, "")[WARM_UP:]
    counts = [{name: entry[name] for name in ("records", "microbatches")} for entry in logged]
    return {
        "steps": [
            {"seconds": seconds, **count} for seconds, count in zip(laps.steps, counts, strict=True)
        ],
        "calls": min(laps.calls),  # of a step that met no new shape
        "warnings": sorted({str(w.message) for w in warned if w.category is UserWarning}),
        "records": mechanism.dataset_size,
        "batch_size": mechanism.batch_size,
        "parameters": sum(parameter.numel() for parameter in parameters),
    }
