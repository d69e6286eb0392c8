"""A trained run, as the verbs that use its model open it.

Torch is imported with the model, after what is wrong with a folder is reported.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft import runs
from dpft.config import offline
from dpft.config.errors import ConfigError
from dpft.config.schema import Run, parse
from dpft.runs.folders import check_no_trial, stored_config
from dpft.tasks import load_task
from dpft.tasks.task import Task

if TYPE_CHECKING:
    import torch

    from dpft.models.load import LoadedModel


@dataclass(frozen=True)
class TrainedRun:
    """A run's folder, the text of its ``config.yaml``, its settings and its record."""

    path: Path
    text: str
    run: Run
    record: dict[str, Any]

    @cached_property
    def task(self) -> Task:
        return load_task(self.run.task)

    @cached_property
    def loaded(self) -> LoadedModel:
        """The trained model, on `device`."""
        folder = self.path / "model"
        runs.check_whole(self.path, ("model/",))
        if not folder.is_dir():  # or the loader would look for such a name on the hub
            raise ConfigError(
                f"{folder} is gone; expected the weights of the run: type dpft train "
                f"{shlex.quote(f'resume={self.path}')}, which takes them from a checkpoint"
            )
        from dpft.models.save import load_saved

        loaded = load_saved(self.run.model, self.task.needs, self.run.seed, folder)
        loaded.model.to(self.device)  # type: ignore[arg-type]
        return loaded

    @cached_property
    def device(self) -> torch.device:
        """This process's GPU if there is one and the run did not ask for the CPU."""
        from dpft.training.devices import device_of

        return device_of("cpu" if self.run.device == "cpu" else "auto")


def loaded_run(path: Path) -> TrainedRun:
    """Open the run in a folder, and ask whether the hub can be reached, for what is loaded next."""
    check_no_trial(path)
    record = runs.read_record(path)
    text, content = stored_config(path)
    runs.check_whole(path, ("record.json", "ledger.jsonl", "config.yaml"))
    found = TrainedRun(path, text, parse_stored(path, content), record)
    offline.stay_offline_if_unreachable()
    return found


def parse_stored(path: Path, content: Mapping[str, Any]) -> Run:
    """Return the settings in ``config.yaml``, see `dpft.runs.folders.stored_config`."""
    try:
        return parse(content)
    except ConfigError as error:
        raise ConfigError(
            f"{path / 'config.yaml'}: {error}. Restore the file, or use the dpft that wrote it"
        ) from error
