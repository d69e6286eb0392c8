"""The progress of a sweep's runs, from their folders, and the runs of a report.

Only public figures of private runs are shown: epsilon and scores of their records.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpft.config.errors import ConfigError, DpftError
from dpft.privacy.guarantee import Guarantee, marked
from dpft.report.gather import Found, Target
from dpft.report.terminal import clock
from dpft.report.text_table import TextTable
from dpft.runs.folders import (
    check_no_trial,
    common_folder,
    is_intact,
    is_run,
    run_names,
    runs_below,
)
from dpft.runs.record import read_record
from dpft.sweep.points import SweepPoint, labels
from dpft.sweep.sweep_folder import SweepFolder
from dpft.tasks.scores import figure, score

WAITING, STARTED, DONE, FAILED = "waiting", "started", "done", "failed"


@dataclass(frozen=True)
class PointState:
    """One point of a sweep."""

    label: str  # the settings that not all points have
    point: SweepPoint  # its settings and where it runs
    state: str  # waiting, started (running, or to be continued), done or failed
    epsilon: str = "-"  # of a finished run, with its mark
    score: str = "-"  # its first, with the metric's name
    seconds: float | None = None  # of its steps
    error: str | None = None  # why it failed, or must not be released
    diverged: bool = False  # it failed since its weights were not finite


class States:
    """Reads a sweep repeatedly; runs that are done are read once."""

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder
        self._points = folder.points()
        self._labels = labels(point.overrides for point in self._points)
        self._done: dict[str, PointState] = {}

    def rows(self) -> list[PointState]:
        """Return the state of every point, in the order of the sweep."""
        return [self._row(*one) for one in zip(self._points, self._labels, strict=True)]

    def _row(self, point: SweepPoint, label: str) -> PointState:
        if point.digest in self._done:
            return self._done[point.digest]
        if is_intact(point.path, point.digest):
            self._done[point.digest] = _finished(PointState(label, point, DONE))
            return self._done[point.digest]
        failure = self._folder.failure(point.digest)
        if failure is None:
            return PointState(label, point, STARTED if point.path.exists() else WAITING)
        return PointState(label, point, FAILED, error=failure.error, diverged=failure.diverged)


def _finished(row: PointState) -> PointState:
    """Add what the record of a finished run says."""
    try:
        record = read_record(row.point.path)
        given = Guarantee.of_record(record)
        epsilon = marked(given.stated, given.voided_by) if given.private else "none"
        row = replace(row, epsilon=epsilon, seconds=record["training"]["seconds"])
        if (record.get("audit") or {}).get("refuted"):
            return replace(row, error="the audit refutes its guarantee; do not release the model")
        metric, value = score(record, None)
        section = record["scores"][record["config"]["decode"]["split"]]
        return replace(row, score=f"{metric} {figure(metric, value, section.get('signature'))}")
    except DpftError as error:
        return replace(row, error=str(error))


def as_table(rows: Sequence[PointState]) -> TextTable:
    """Return a table with one row for each point."""
    cells = [[r.label, r.state, r.epsilon, r.score, clock(r.seconds)] for r in rows]
    return TextTable(["point", "state", "epsilon", "score", "time"], cells, summary(rows), left=2)


def summary(rows: Sequence[PointState]) -> str:
    """Return text such as ``12 points: 3 done, 1 started, 8 waiting``."""
    counts = Counter(row.state for row in rows)
    others = [f"{counts[s]} {s}" for s in (STARTED, FAILED, WAITING) if counts[s]]
    noun = "point" if len(rows) == 1 else "points"
    return f"{len(rows)} {noun}: {', '.join([f'{counts[DONE]} done', *others])}"


def find(paths: Sequence[Path]) -> Found:
    """Return the runs at ``paths``.

    Raises:
        ConfigError: if there is no run at one of them, or one that must not be shown.
    """
    if not paths:
        raise ConfigError("got no run; type dpft report RUN, a folder of runs or a sweep's folder")
    for path in paths:
        check_no_trial(path)
    if len(paths) == 1 and (paths[0] / "sweep.json").is_file():
        return _of_sweep(paths[0])
    if len(paths) == 1 and is_run(paths[0]):
        name = paths[0].resolve().name
        return Found(name, paths[0], (Target(paths[0], name),), several=False)
    runs: dict[Path, Path] = {}  # each once, however it was named
    for path in paths:
        found = [path] if is_run(path) else runs_below(path) if path.is_dir() else []
        if (path / "sweep.json").is_file() and not is_run(path):
            found = [target.path for target in _of_sweep(path).targets if is_run(target.path)]
        elif not found:
            raise ConfigError(
                f"{path} {'holds no runs' if path.is_dir() else 'is no folder'}; expected a run "
                "directory (with identity.json or record.json), a folder that holds some, or a "
                "sweep's folder (runs/sweeps/NAME)"
            )
        runs |= {run.resolve(): run for run in found if run.resolve() not in runs}
    targets = tuple(map(Target, runs.values(), run_names(list(runs))))
    folder = paths[0] if len(paths) == 1 else common_folder(list(runs))
    return Found(f"{folder.resolve().name}: {len(runs)} runs", folder, targets, several=True)


def _of_sweep(path: Path) -> Found:
    rows = States(SweepFolder(path)).rows()
    names = run_names([row.point.path for row in rows])
    targets = tuple(
        Target(row.point.path, name, row.label, row.state, row.error)
        for row, name in zip(rows, names, strict=True)
    )
    return Found(f"Sweep {path.resolve().name}", path, targets, several=True)
