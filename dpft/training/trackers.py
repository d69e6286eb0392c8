"""Trackers, for watching a run's figures while it runs: a CSV file, or those of accelerate.

A tracker receives a step's figures after the step is in the ledger, and only those that
`Tracking.figures` selects. One that fails is dropped with a warning; the run continues.
"""

from __future__ import annotations

import csv
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError
from dpft.config.schema import Run
from dpft.privacy import Mechanism
from dpft.privacy.guarantee import VOIDS, warnings
from dpft.runs.atomic import Closing, write_atomic


class Tracking(Closing):
    """Passes figures of a run to its tracker.

    Args:
        run: the run.
        folder: the run's.
        warn: called once, with a failure.

    Raises:
        ConfigError: the tracker's package is missing.
    """

    def __init__(self, run: Run, folder: Path, warn: Callable[[str], None]) -> None:
        name = run.track.name
        if name != "csv" and importlib.util.find_spec(name) is None:
            raise ConfigError(f"track={name} is not installed; type pip install 'dpft[{name}]'")
        self._run, self._folder, self._warn = run, folder, warn
        self._tracker: Any = None

    def begin(self, start: int) -> None:
        """Begin before step ``start``; earlier figures of later steps are void."""
        self._tracker = self._tried(make_tracker, self._run, self._folder, start)

    def figures(
        self,
        mechanism: Mechanism,
        groups: Sequence[str],
        step: int,
        rate: float,
        thresholds: tuple[float, ...],
        summary: Mapping[str, Any],
    ) -> dict[str, float]:
        """Return the figures after step ``step``, counted from 0, by name.

        Args:
            mechanism: the run's.
            groups: names of the clipping groups, in order.
            step: the step.
            rate: learning rate.
            thresholds: released by noisy counts; empty if there is no noise.
            summary: see `dpft.training.statistics.StepStatistics.summary`; it is noiseless, and
                left out of a run with noise.
        """
        noisy = bool(mechanism.noise_multiplier)
        values = {"learning_rate": rate}
        if noisy:
            # The column is read by itself, so its name has what voids its figures.
            voided_by = warnings(mechanism.sampling, self._run.privacy.noise_seed)
            name = ", ".join(["epsilon", *(VOIDS[reason] for reason in voided_by)])
            values[re.sub(r"\W+", "_", name)] = mechanism.epsilon_after(step + 1)
            values["noise_multiplier"] = mechanism.noise_multiplier
        names = groups if len(groups) == len(thresholds) else map(str, range(len(thresholds)))
        values |= {f"threshold/{name}": x for name, x in zip(names, thresholds, strict=True)}
        if not noisy:
            found = summary.items()
            values |= {f"train/{k}": float(x) for k, x in found if isinstance(x, int | float)}
        return values

    def log(self, step: int | None, values: Mapping[str, float]) -> None:
        """Track values of a step, counted from 1; 0 is before the first, None is no step."""
        if self._tracker is not None:
            self._tried(self._tracker.log, dict(values), step)

    def close(self) -> None:
        """End the tracker."""
        if self._tracker is not None:
            self._tried(self._tracker.finish)
            self._tracker = None

    def _tried(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Exception as error:  # whatever a service's library raises
            self._tracker = None
            self._warn(
                f"the tracker failed ({type(error).__name__}: {str(error)[:200]}); the run "
                "continues without it"
            )
            return None


def make_tracker(run: Run, folder: Path, start: int) -> Any:
    """Return the tracker of a run in its folder, which continues with step ``start``.

    What the services' libraries collect by themselves is turned off: the terminal's output, which
    shows losses, code, command line, user and machine.
    """
    if run.track.name == "csv":
        return CSV(folder / "track.csv", start)
    import accelerate
    from accelerate import tracking as services

    accelerate.PartialState()  # without it accelerate's trackers fail at their log messages
    project, settings = run.track.project, public_settings(run)
    tracker: Any
    match run.track.name:
        case "tensorboard":
            purge = start + 1 if start else None
            tracker = services.TensorBoardTracker("tensorboard", folder, purge_step=purge)
        case "wandb":
            names = "disable_git disable_code x_disable_meta x_disable_machine_info x_disable_stats"
            quiet = {"console": "off", **dict.fromkeys(names.split(), True)}
            own: dict[str, Any] = {"name": folder.name, "config": settings, "dir": str(folder)}
            tracker = services.WandBTracker(project, settings=quiet, **own)
        case _:
            who = {"mlflow.user": "dpft", "mlflow.source.name": "dpft"}
            tracker = services.MLflowTracker(project, run_name=folder.name, tags=who)
    tracker.start()
    if run.track.name == "mlflow":
        tracker.store_init_configuration(settings)
    return tracker


class CSV:
    """``track.csv``: a line a step; evaluations are columns. Scores are in the record."""

    def __init__(self, path: Path, start: int) -> None:
        self._path, self._names, self._rows = path, ["step"], list[dict[str, Any]]()
        if path.is_file():
            reader = csv.DictReader(StringIO(path.read_text(encoding="utf-8")))
            self._rows = [row for row in reader if int(row["step"]) <= start]

    def log(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Write a step's line; scores, which belong to no step, are left out."""
        if step is None:
            return
        self._rows.append({"step": step, **values})
        if new := [name for row in self._rows for name in row if name not in self._names]:
            self._names = list(dict.fromkeys([*self._names, *new]))
            text = StringIO()
            writer = csv.DictWriter(text, self._names)
            writer.writeheader()
            writer.writerows(self._rows)
            write_atomic(self._path, text.getvalue())
        else:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, self._names).writerow(self._rows[-1])

    def finish(self) -> None:
        """Do nothing: the file is closed after each line."""


def public_settings(run: Run) -> dict[str, Any]:
    """Return a run's settings by dotted name, without any that name the data or a folder."""
    found: dict[str, Any] = {"task": run.task["name"], "model": run.model.name, "seed": run.seed}
    found |= {"adapt": run.adapt.name, "clip": run.clip.style}
    for group in ("optim", "privacy", "decode"):
        found |= {f"{group}.{key}": value for key, value in dict(run.raw[group]).items()}
    found.pop("privacy.noise_seed", None)
    return found
