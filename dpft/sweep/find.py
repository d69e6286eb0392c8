"""Which runs a report is about, and where its page goes: a run, several, a folder, or a sweep."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from dpft.config.errors import ConfigError, DpftError
from dpft.report.pages.target import Found, Target
from dpft.runs.hidden import below_private, check_no_trial

_OF_A_RUN = ("record.json", "identity.json", "ledger.jsonl")
_SET_ASIDE = re.compile(r"\.old-\d+$")


def find(paths: Sequence[Path], private: bool = False) -> Found:
    """The runs that ``paths`` mean.

    Args:
        paths: run directories, their records, folders that hold runs, and sweeps' folders.
        private: whether trials of a private selection may be given. In a folder that is searched
            they are passed over all the same.

    Raises:
        ConfigError: if there is no run at one of them, or one that nobody may be shown.
    """
    if not paths:
        raise ConfigError("got no run; type dpft report RUN, a folder of runs or a sweep's folder")
    if not private:
        for path in paths:
            check_no_trial(path)
    if len(paths) == 1:
        only = _directory(paths[0])
        if _is_sweep(only):
            return _of_sweep(only)
        if _is_run(only):
            name = only.resolve().name
            return Found(name, only, (Target(only, name),), several=False)
    runs: dict[Path, Path] = {}  # each once, however it was named
    for path in paths:
        for run in _runs_at(_directory(path)):
            runs.setdefault(run.resolve(), run)
    targets = tuple(map(Target, runs.values(), _names(list(runs))))
    folder = _directory(paths[0]) if len(paths) == 1 else _common(list(runs))
    return Found(f"{folder.resolve().name}: {len(runs)} runs", folder, targets, several=True)


def _directory(path: Path) -> Path:
    return path.parent if path.name == "record.json" and path.is_file() else path


def _is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in _OF_A_RUN)


def _is_sweep(path: Path) -> bool:
    return (path / "sweep.json").is_file()


def _runs_at(path: Path) -> list[Path]:
    if _is_run(path):
        return [path]
    if _is_sweep(path):
        return [t.path for t in _of_sweep(path).targets if _is_run(t.path)]
    if not path.is_dir():
        raise ConfigError(
            f"there is no folder {path}; expected a run directory, a folder that holds some, or a "
            "sweep's folder (runs/sweeps/NAME)"
        )
    # What force=true set aside is no result; its cost is stated where the run itself is. And under
    # private/ lie the trials of a selection, of which not even the number may be known.
    runs = [
        run
        for run in sorted({file.parent for name in _OF_A_RUN for file in path.rglob(name)})
        if not any(_SET_ASIDE.search(part) for part in run.relative_to(path).parts)
        and not below_private(run, path)
    ]
    if not runs:
        raise ConfigError(
            f"{path} holds no runs; expected a run directory (with identity.json or record.json), "
            "a folder that holds some, or a sweep's folder"
        )
    return runs


def _names(runs: Sequence[Path]) -> list[str]:
    """Folder names where they differ, else the paths below the folder that holds them all."""
    short = [run.name for run in runs]
    if len(set(short)) == len(short):
        return short
    base = _common(runs)
    return [run.relative_to(base).as_posix() for run in runs]


def _common(runs: Sequence[Path]) -> Path:
    return Path(os.path.commonpath([run.parent for run in runs]))


def _of_sweep(path: Path) -> Found:
    # These import Hydra, which a report of one run does without.
    from dpft.sweep.folder import SweepFolder
    from dpft.sweep.points import labels
    from dpft.sweep.state import Row, States

    folder = SweepFolder(path)
    states = States(folder)
    problems: tuple[str, ...] = ()
    try:
        rows = states.rows()
    except DpftError as error:
        problems = (str(error).replace(f"{path}/", ""),)
        points = folder.points() or ()
        names = labels(point.overrides for point in points)
        rows = [Row(label, point, "") for label, point in zip(names, points, strict=True)]
    if not rows:
        raise ConfigError(
            f"the sweep {path} has no runs yet; type dpft sweep --watch {path} to see how far it is"
        )
    names = _names([row.point.path for row in rows])
    targets = tuple(
        Target(row.point.path, name, row.label, row.state or None, row.error)
        for row, name in zip(rows, names, strict=True)
    )
    title = f"Sweep {path.resolve().name}"
    return Found(title, path, targets, True, folder.metric(), states.searched, problems)
