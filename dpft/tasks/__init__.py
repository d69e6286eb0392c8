"""Tasks: what is trained on, and how it is scored. `load_task` builds one from its config group."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dpft.config.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from dpft.tasks.task import Task

# The class of each task. Others are named by `task.name=your.module:YourTask`.
TASKS: Mapping[str, str] = MappingProxyType(
    {
        "e2e": "dpft.tasks.e2e:E2E",
        "dart": "dpft.tasks.dart:DART",
        "personachat": "dpft.tasks.dialogues:PersonaChat",
        "samsum": "dpft.tasks.dialogues:SAMSum",
        "sst2": "dpft.tasks.classification:SST2",
        "qnli": "dpft.tasks.classification:QNLI",
        "qqp": "dpft.tasks.classification:QQP",
        "mnli": "dpft.tasks.classification:MNLI",
        "cifar10": "dpft.tasks.images:CIFAR10",
        "cifar100": "dpft.tasks.images:CIFAR100",
        "svhn": "dpft.tasks.images:SVHN",
        "gtsrb": "dpft.tasks.images:GTSRB",
        "food101": "dpft.tasks.images:Food101",
        # The user's own data.
        "text2text": "dpft.tasks.own_texts:TextToText",
        "classification": "dpft.tasks.own_texts:TextClassification",
        "chat": "dpft.tasks.conversations:Chat",
        "language_modeling": "dpft.tasks.own_texts:LanguageModeling",
    }
)


def load_task(config: Mapping[str, Any]) -> Task:
    """Return the task ``config["name"]``, with the group's other keys as its settings."""
    from dpft.config.schema import build

    name = str(config["name"])
    module, colon, cls = TASKS.get(name, name).partition(":")
    if not colon:
        raise ConfigError(
            f"no task {name!r}{suggestion(name, TASKS)}; expected one of {', '.join(TASKS)}, or "
            "your.module:YourTask"
        )
    try:
        found = getattr(importlib.import_module(module), cls)
    except Exception as error:  # there is no such module, or a user's module raises it
        raise ConfigError(f"task.name is {name!r}, which cannot be imported: {error}") from error
    from dpft.tasks.task import Task

    if not (isinstance(found, type) and issubclass(found, Task)):
        raise ConfigError(
            f"task.name is {name!r}, which is no task; expected a subclass of dpft.tasks.task.Task"
        )
    # These keys of the config group are not settings of the task's class.
    other = ("name", "train_size", "beams", "eval_split")
    settings = {key: value for key, value in config.items() if key not in other}
    return build(found, settings, "task")
