"""Where a run's figures can be watched while it runs: files, TensorBoard, or a service.

A tracker has four methods (`base.Tracker`). It is told of steps after they are in the ledger, and
it cannot stop a run: what fails is told once, and nothing is tracked from then on.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpft import runs
from dpft.config.errors import NotInstalledError
from dpft.config.schema import Run
from dpft.training.trackers.base import Begun, Figures, Guarded, Tracker, public_settings

__all__ = ["Begun", "Figures", "Guarded", "Tracker", "make_tracker", "tracking"]


@contextmanager
def tracking(
    run: Run, directory: runs.RunDirectory, warn: Callable[[str], None]
) -> Iterator[Guarded]:
    """The tracker of a run, ended whatever happens."""
    if run.track.name == "none":
        yield Guarded(None, warn)
        return
    folder = directory.private if run.track.private else directory.path

    def begun(start: int) -> Begun:
        return Begun(directory.path.name, run.track.project, folder, public_settings(run), start)

    tracker = Guarded(make_tracker(run.track.name), warn, begun)
    try:
        yield tracker
    finally:
        tracker.end()


def make_tracker(name: str) -> Tracker:
    """The tracker of this name, not begun.

    Raises:
        NotInstalledError: if its package is missing, with what to type.
    """
    if name != "csv" and importlib.util.find_spec(name) is None:
        raise NotInstalledError(f"track={name} is not installed; type pip install 'dpft[{name}]'")
    from dpft.training.trackers import files, services

    kinds: dict[str, type[Tracker]] = {
        "csv": files.CSV,
        "tensorboard": files.TensorBoard,
        "wandb": services.WandB,
        "mlflow": services.MLflow,
        "trackio": services.Trackio,
    }
    return kinds[name]()
