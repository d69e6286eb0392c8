"""Scores of a trained model by lm-evaluation-harness, as sections of the run's record.

They are computed from the released weights, and so covered by the run's guarantee where the
questions are public.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpft.config.checks import COUNT
from dpft.config.errors import ConfigError, DataError, NotInstalledError, suggestion
from dpft.runs.record import HARNESS
from dpft.training.trained import TrainedRun


@dataclass(frozen=True)
class HarnessSettings:
    """What is asked for.

    Attributes:
        tasks: names, with commas between them.
        include: a folder with tasks of one's own, in the harness's form.
        shots: solved examples before each question; None: as many as the task says.
        limit: the first questions of each task, so many; None: all.
        batch_size: questions that are answered together.
        chat: whether questions are put in the model's chat template.
    """

    tasks: str
    include: str | None = None
    shots: int | None = None
    limit: int | None = None
    batch_size: int = 8
    chat: bool = False

    def __post_init__(self) -> None:
        COUNT.check("limit", self.limit)
        COUNT.check("batch_size", self.batch_size)
        if self.shots is not None and self.shots < 0:
            raise ConfigError(f"shots is {self.shots}; expected 0 or more")
        if self.include is not None and not Path(self.include).is_dir():
            raise ConfigError(f"include is {self.include!r}; expected a folder with YAML files")
        if not self.names:
            raise ConfigError(f"tasks is {self.tasks!r}; expected names, as in tasks=hellaswag")

    @property
    def names(self) -> list[str]:
        """Of the tasks."""
        return [name.strip() for name in self.tasks.split(",") if name.strip()]


def check_harness(trained: TrainedRun) -> None:
    """Refuse what the harness cannot ask, before torch is loaded.

    Raises:
        ConfigError: if it is not installed, or the model writes no text, or has a prefix.
    """
    if find_spec("lm_eval") is None:
        raise NotInstalledError(
            "dpft eval needs lm-evaluation-harness, which is not installed; type pip install "
            "'dpft[eval]'"
        )
    if trained.task.needs.kind != "causal":
        raise ConfigError(
            f"task {trained.task.name} trains a model that writes no text, and the harness asks "
            "for likelihoods of texts; dpft score has this run's own scores"
        )
    if trained.run.adapt.name == "prefix":
        raise ConfigError(
            "adapt=prefix, whose positions the harness does not pass to the "
            "model; expected a run with another adaptation, such as adapt=lora"
        )


def evaluate(trained: TrainedRun, settings: HarnessSettings) -> dict[str, dict[str, Any]]:
    """Ask all tasks.

    Returns:
        Sections of a record's scores, see `dpft.runs.record.ScoreRecord`, by ``HARNESS`` and the
        task's name; of a group of tasks the group's, or those of its tasks where it has none.

    Raises:
        ConfigError: for a task that is not known.
        DataError: if its questions are not to be had.
    """
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    for name in ("lm_eval", "lm-eval"):
        logging.getLogger(name).setLevel(logging.ERROR)
    manager = TaskManager(include_path=settings.include)
    for name in settings.names:
        if name not in manager.all_tasks:
            raise ConfigError(
                f"the harness has no task {name!r}{suggestion(name, manager.all_tasks)}; type "
                "lm-eval ls tasks for all, or include=FOLDER for your own"
            )
    loaded = trained.loaded
    loaded.model.eval()
    model = HFLM(
        pretrained=loaded.model, tokenizer=loaded.text_tokenizer, batch_size=settings.batch_size
    )
    try:
        found = lm_eval.simple_evaluate(
            model=model,
            tasks=settings.names,
            num_fewshot=settings.shots,
            limit=settings.limit,
            apply_chat_template=settings.chat,
            task_manager=manager,
            log_samples=False,
        )
    # The libraries that load data raise many types; a hub that is not reached is of the first.
    except (OSError, ValueError, LookupError) as error:
        said = str(error).strip().partition("\n")[0]
        raise DataError(
            f"the questions of {', '.join(settings.names)} could not be had or asked "
            f"({type(error).__name__}: {said}). Most tasks take theirs from the hub: go online "
            "once, or give tasks whose files are here with include=FOLDER"
        ) from error
    assert found is not None
    return dict(_sections(found, lm_eval.__version__, settings))


def _sections(
    found: Mapping[str, Any], version: str, settings: HarnessSettings
) -> Iterator[tuple[str, dict[str, Any]]]:
    results, groups = found["results"], found.get("group_subtasks", {})
    scored = {name: _metrics(said) for name, said in results.items()}
    # What stands for its tasks: a group without an aggregate has a name alone.
    told = {child for name in groups if any(scored.get(name, ())) for child in _below(name, groups)}
    for name, (metrics, errors) in scored.items():
        if (groups.get(name) and not metrics) or (name in told and name not in settings.names):
            continue
        leaves = list(_leaves(name, groups))
        counts = [found["n-samples"][leaf] for leaf in leaves]
        examples, of = (sum(count[key] for count in counts) for key in ("effective", "original"))
        shots = {found["n-shot"][leaf] for leaf in leaves if leaf in found["n-shot"]}
        said = [
            f"lm-eval {version}",
            f"task version {found['versions'].get(name, 'none')}",
            *([f"{', '.join(map(str, sorted(shots)))} shots"] if shots else []),
            *(["chat template"] if settings.chat else []),
            *([f"the first {examples:,} of {of:,}"] if examples < of else []),
        ]
        yield (
            f"{HARNESS}{name}",
            {
                "metrics": metrics,
                "standard_errors": errors,
                "examples": examples,
                "signature": "|".join(said),
            },
        )


def _metrics(scored: Mapping[str, Any]) -> tuple[dict[str, float | None], dict[str, float]]:
    """Scores and their standard errors by name, which a filter of answers is part of."""
    metrics: dict[str, float | None] = {}
    errors: dict[str, float] = {}
    for key, value in scored.items():
        metric, comma, chosen = key.partition(",")
        if not comma:
            continue
        number = float(value) if isinstance(value, int | float) else None
        plain, stderr, _ = metric.partition("_stderr")
        name = plain if chosen == "none" else f"{plain} ({chosen})"
        if not stderr:
            metrics[name] = number
        elif number is not None:
            errors[name] = number
    return metrics, errors


def _below(name: str, groups: Mapping[str, Iterable[str]]) -> Iterator[str]:
    for child in groups.get(name, ()):
        yield child
        yield from _below(child, groups)


def _leaves(name: str, groups: Mapping[str, Iterable[str]]) -> Iterator[str]:
    children: Sequence[str] = list(groups.get(name, ()))
    if not children:
        yield name
    for child in children:
        yield from _leaves(child, groups)
