"""The runs of a report, and the folder of its page: a run, several, a folder, or a sweep."""

from collections.abc import Sequence
from pathlib import Path

from dpft.config.errors import ConfigError
from dpft.report.gather import Found, Target
from dpft.runs.folders import check_no_trial, common_folder, is_run, run_names, runs_below


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
    # These import Hydra, which a report of one run does without.
    from dpft.sweep.state import States
    from dpft.sweep.sweep_folder import SweepFolder

    rows = States(SweepFolder(path)).rows()
    names = run_names([row.point.path for row in rows])
    targets = tuple(
        Target(row.point.path, name, row.label, row.state, row.error)
        for row, name in zip(rows, names, strict=True)
    )
    return Found(f"Sweep {path.resolve().name}", path, targets, several=True)
