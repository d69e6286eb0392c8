"""``dpft bench --run``: the runs that are timed, their steps in a worker, and the table of them."""

import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.overrides import override, setting_of
from dpft.config.schema import parse
from dpft.report.text_table import TextTable

if TYPE_CHECKING:
    from dpft.training.loop import Phase

STEPS = 8
WARM_UP = 6
"""Steps before those that are timed: a shape is compiled when it is first met."""
_PHASES = ("data", "clipped sums", "noise", "ledger", "optimizer", "logs", "waiting")
_PLACES = ("name", "resume", "runs_dir", "track", "parallel", "ranks", "privacy.noise_seed")
_NOTE = (
    "means over the middle half of the steps in order of time{}. The runs had a public noise seed "
    "and were deleted: nothing of them may be released, so no budget is spent. Times and counts "
    "follow from the records without noise: do not publish them where records are private"
)
_SPLIT = ", and of steps that wait for the device after each phase for the phases"


def jobs_of(words: Sequence[str], folder: Path, threads: int, steps: int) -> dict[str, Any]:
    """Return a worker's job for each run by its label: private or not, compiled or not.

    What ``words`` decide, by ``clip=none`` or ``compile``, is not varied.

    Raises:
        ConfigError: a setting is wrong, or has no place in one process whose folder is deleted.
    """
    run = parse(compose(words))
    if misplaced := [word for word in words if setting_of(word) in _PLACES]:
        raise ConfigError(f"got {misplaced[0]} next to --run; leave it out: the run is temporary")
    private = [word for word in words if setting_of(word) != "compile"]
    plain = [word for word in private if setting_of(word).partition(".")[0] != "clip"]
    jobs: dict[str, Any] = {}
    for style in dict.fromkeys(["none", str(run.clip.style)]):
        for compiled in (run.compile,) if isinstance(run.compile, bool) else (True, False):
            own = [*plain, "clip=none"] if style == "none" else private
            more = {"compile": compiled, "runs_dir": f"{folder}/{len(jobs)}", "name": "run"}
            jobs[f"{style}, {'compiled' if compiled else 'eager'}"] = {
                **{"kind": "run", "steps": steps, "threads": run.threads or threads},
                "settings": [*own, *map(override, more, more.values()), "privacy.noise_seed=0"],
            }
    return jobs


def figures(result: Mapping[str, Any], cuda: bool) -> dict[str, float]:
    """Return the means of a step by name; times in milliseconds.

    They are over the middle half of the steps in order of time: a step that meets a new shape, or
    saves a checkpoint, does not count.
    """

    def middle(steps: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        away = len(steps) // 4
        ordered = sorted(steps, key=lambda step: sum(step["seconds"].values()))
        return ordered[away : len(steps) - away]

    usual, split = (middle(result["steps"][first :: 1 + cuda]) for first in (0, int(cuda)))
    seconds = fmean(sum(step["seconds"].values()) for step in usual)
    waiting = fmean(step["seconds"].get("waiting", 0.0) for step in usual)
    parts = {p: fmean(step["seconds"].get(p, 0.0) for step in split) for p in _PHASES}
    return {
        "records a second": fmean(step["records"] for step in usual) / seconds,
        "ms of a step": 1000 * seconds,
        "ms of host work": 1000 * (seconds - waiting),
        **{f"ms of {phase}": 1000 * part for phase, part in parts.items()},
        "microbatches": fmean(step["microbatches"] for step in usual),
    }


def table(facts: Mapping[str, Any], load: float, results: Mapping[str, Any]) -> TextTable:
    """Return a column for each run, with device, versions, counts and failures as notes."""
    known, cuda = facts["environment"], facts["device"] == "cuda"
    found = {label: figures(one, cuda) for label, one in results.items() if "steps" in one}
    rows = []
    for name in next(iter(found.values()), ()):
        rows.append([name, *(f"{found[k][name]:,.1f}" if k in found else "-" for k in results)])
    rates = {label: one["records a second"] for label, one in found.items()}
    fastest = max((rates[k] for k in found if not results[k]["private"]), default=0.0)
    ratios = [f"{fastest / rates[k]:.2f}" if rates.get(k) and fastest else "-" for k in results]
    rows.append(["time, to the fastest none", *ratios])
    device = known["gpu"] if cuda else f"{known['cpu']}, {known['threads']} threads"
    versions = f"torch {known['packages'].get('torch')}, noise seed 0"
    notes = [("Machine", f"{device}, load average {load:.1f} before, {versions}")]
    for label, one in results.items():
        if "steps" not in one:
            notes.append((label, one["message"]))
            continue
        counts = (
            f"{one['parameters']:,} trained parameters, {one['records']:,} records, "
            f"{one['batch_size']} expected in a step, {len(one['steps'])} steps"
        )
        notes += [(label, counts), *((label, warning) for warning in one["warnings"])]
    notes.append(("Numbers", _NOTE.format(_SPLIT if cuda else "")))
    return TextTable(["a step", *results], rows, left=1, notes=notes)


class _MeasuredError(Exception):
    """Ends the training, since all steps were measured."""


class Laps:
    """Receives the phases of all steps, see ``lap`` of `dpft.training.loop.train`.

    Args:
        requests: yields once for each step to time, what is called with its seconds.
        cuda: whether every other timed step is to wait for the device after each phase. So a phase
            has the time of its kernels; the steps between run as in training.

    Attributes:
        steps: seconds by phase of each timed step.
    """

    def __init__(self, requests: Iterable[Any], cuda: bool) -> None:
        self.steps: list[Mapping[str, float]] = []
        self._requests, self._cuda, self._done = iter(requests), cuda, 0
        self._report: Any = None
        self._seconds: dict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    def __call__(self, phase: "Phase") -> None:
        """Note the end of a phase; after the last one of a step, wait for the next request."""
        if self._cuda and (phase == "logs" or len(self.steps) % 2):
            import torch

            torch.cuda.synchronize()
        self._seconds[phase] += time.perf_counter() - self._since
        if phase == "logs":
            self._end_step()
        self._since = time.perf_counter()

    def _end_step(self) -> None:
        if self._report is not None:
            self.steps.append(self._seconds)
            self._report(sum(self._seconds.values()))
        self._seconds = defaultdict(float)
        self._done += 1
        if self._done >= WARM_UP:
            self._report = next(self._requests, None)
            if self._report is None:
                raise _MeasuredError


def measure(job: Mapping[str, Any], requests: Iterable[Any]) -> dict[str, Any]:
    """Train as `dpft train` does in a new folder, and time the steps that are requested.

    Raises:
        ConfigError: the run has fewer than ``job["steps"]`` steps after those that warm up.
    """
    from dpft.runs.directory import RunDirectory
    from dpft.runs.folders import run_path
    from dpft.runs.log import read_log
    from dpft.tasks import load_task
    from dpft.training.mechanisms import read_data
    from dpft.training.progress import Progress
    from dpft.training.session import Session
    from dpft.training.setup import prepare

    run = parse(compose(job["settings"]))
    with (
        warnings.catch_warnings(record=True) as warned,
        RunDirectory.open(run_path(run), run.identity(), "") as directory,
        Progress(quiet=True) as progress,
    ):
        warnings.simplefilter("default")
        data = read_data(run, load_task(run.task), progress)
        prepared = prepare(run, data, directory, progress)
        clipper, mechanism = prepared.parts.clipper, prepared.parts.mechanism
        if mechanism.steps < (needed := WARM_UP + job["steps"] + 1):
            raise ConfigError(
                f"the run has {mechanism.steps} steps; expected at least {needed}, of which "
                f"{WARM_UP} warm up: type optim.steps={needed}"
            )
        parameters = list(clipper.parameters.values())
        laps = Laps(requests, parameters[0].is_cuda)
        with Session(prepared) as session, suppress(_MeasuredError):
            session.train(lap=laps)
        logged = read_log(directory.metrics, "")[WARM_UP:]
    counts = [{name: entry[name] for name in ("records", "microbatches")} for entry in logged]
    return {
        "steps": [
            {"seconds": seconds, **count} for seconds, count in zip(laps.steps, counts, strict=True)
        ],
        "warnings": sorted({str(w.message) for w in warned if w.category is UserWarning}),
        "private": run.clip.private,
        "records": mechanism.dataset_size,
        "batch_size": mechanism.batch_size,
        "parameters": sum(parameter.numel() for parameter in parameters),
    }
