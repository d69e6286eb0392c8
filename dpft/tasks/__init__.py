"""Tasks: one file per family. `load_task` builds one from its config group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpft.errors import ConfigError

RUNNABLE = ("e2e",)


def is_runnable(name: str) -> bool:
    """Whether the task can be trained; the others have a size for ``dpft account`` only."""
    return name in RUNNABLE


def load_task(config: Mapping[str, Any]) -> Any:
    """The task that ``config["name"]`` names, with the group's other keys as its settings.

    Raises:
        ConfigError: for a task that can be accounted for but not yet run, or an unknown setting.
    """
    from dpft.config import build
    from dpft.tasks.e2e import E2E

    classes = {"e2e": E2E}
    name = config["name"]
    if not is_runnable(name):
        raise ConfigError(
            f"task {name!r} cannot be trained yet, only accounted for (dpft account task={name}); "
            f"expected one of {', '.join(RUNNABLE)}"
        )
    settings = {k: v for k, v in config.items() if k not in ("name", "train_size")}
    return build(classes[name], settings, "task")
