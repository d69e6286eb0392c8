"""Tasks: what is trained on, and how it is scored. `load_task` builds one from its config group."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dpft.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from dpft.tasks.base import Task

# Where the class of each task is. One of your own is named by `task.name=your.module:YourTask`.
TASKS: Mapping[str, str] = MappingProxyType(
    {
        "e2e": "dpft.tasks.e2e:E2E",
    }
)

# Keys of the config group that are not settings of the task's class.
_BESIDE = ("name", "train_size", "beams", "eval_split")


def load_task(config: Mapping[str, Any]) -> Task:
    """The task that ``config["name"]`` names, with the group's other keys as its settings.

    Raises:
        ConfigError: for a task that does not exist, or an unknown setting.
    """
    from dpft.config import build

    name = str(config["name"])
    place = TASKS.get(name, name)
    module, colon, cls = place.partition(":")
    if not colon:
        raise ConfigError(
            f"no task {name!r}{suggestion(name, TASKS)}; expected one of {', '.join(TASKS)}, or "
            "your.module:YourTask"
        )
    try:
        found = getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"task.name is {name!r}, which cannot be imported: {error}") from error
    settings = {key: value for key, value in config.items() if key not in _BESIDE}
    task: Task = build(found, settings, "task")
    return task
