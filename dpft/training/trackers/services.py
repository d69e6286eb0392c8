"""Trackers of services. They are given nothing beside what `Figures` chose.

Their libraries like to collect more (the terminal's output, code, the command line, names of
machines): that is turned off, since a run's terminal shows losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpft.training.trackers.base import Begun, Tracker


class WandB(Tracker):
    """Weights & Biases; ``WANDB_MODE=offline`` keeps everything on this machine."""

    def begin(self, run: Begun) -> None:
        import wandb

        settings = wandb.Settings(
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_disable_stats=True,
        )
        run.folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=run.project,
            name=run.name,
            dir=str(run.folder),
            config=dict(run.settings),
            settings=settings,
        )

    def step(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def scores(self, split: str, values: Mapping[str, float]) -> None:
        self._run.summary.update({f"{split}/{name}": value for name, value in values.items()})

    def end(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """MLflow, at ``MLFLOW_TRACKING_URI``."""

    def begin(self, run: Begun) -> None:
        import mlflow

        self._client: Any = mlflow.MlflowClient()
        found = self._client.get_experiment_by_name(run.project)
        number = found.experiment_id if found else self._client.create_experiment(run.project)
        # Not `start_run`, which notes who ran what from where.
        self._id = self._client.create_run(number, run_name=run.name).info.run_id
        for name, value in run.settings.items():
            self._client.log_param(self._id, name, value)

    def step(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._id, name, value, step=step)

    def scores(self, split: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._id, f"{split}/{name}", value)

    def end(self) -> None:
        self._client.set_terminated(self._id)


class Trackio(Tracker):
    """Trackio, whose dashboard and files are on this machine unless its settings say otherwise."""

    def begin(self, run: Begun) -> None:
        import trackio

        self._run: Any = trackio.init(
            project=run.project,
            name=run.name,
            config=dict(run.settings),
            resume="allow",
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def step(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def scores(self, split: str, values: Mapping[str, float]) -> None:
        self._run.log({f"{split}/{name}": value for name, value in values.items()})

    def end(self) -> None:
        self._run.finish()
