"""Predictions of a split: made with live progress, written, read and scored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from dpft.config.errors import DataError
from dpft.config.schema import Decode
from dpft.runs.atomic import write_atomic
from dpft.runs.environment import explained
from dpft.tasks.objectives.objective import Instance, Prediction
from dpft.tasks.scores import packed
from dpft.tasks.sources import file_text
from dpft.tasks.task import Task
from dpft.training.progress import Progress

if TYPE_CHECKING:  # a file is read before torch is imported, which takes seconds
    from dpft.models.load import LoadedModel
    from dpft.parallel.cohort import TrainingCohort

_EXPECTED = '{"prediction": "...", "references": ["...", ...]} on each line'
_OPTIONAL = ("subset", "nll", "tokens", "finished", "cut")
# Another program may have written a number, or null where there is no text.
_Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else str(value))]


class _Line(BaseModel, strict=True):
    """One line of a predictions file, see `Prediction`; other keys are ignored."""

    source: _Text = ""
    prediction: str
    references: Annotated[tuple[str, ...], Field(min_length=1)]
    subset: _Text = ""
    nll: float | None = None  # inf and nan of a model that diverged included
    tokens: Annotated[int | None, Field(ge=1)] = None
    finished: bool | None = None
    cut: bool | None = None


def predict(
    task: Task,
    loaded: LoadedModel,
    instances: Sequence[Instance],
    settings: Decode,
    seed: int,
    progress: Progress,
    *,
    cohort: TrainingCohort | None = None,
) -> list[Prediction]:
    """Answer every instance, and warn of cut prompts and texts that were stopped.

    Raises:
        RankError: another rank failed, or has other instances.
        TrainingError: memory runs out.
    """
    from dpft.parallel.cohort import TrainingCohort, together

    several, size = cohort or TrainingCohort(), settings.batch_size
    advice = "type dpft score RUN with fewer decode.batch_size, decode.beams or max_new_tokens"
    with (
        explained(f"decoding with decode.batch_size={size}", advice),
        progress.phase("predicting", len(instances)) as advance,
        together(several),
    ):
        objective = task.objective(loaded)
        predictions = objective.predict(loaded.model, instances, settings, seed, advance, several)
    if stopped := sum(prediction.finished is False for prediction in predictions):
        progress.warn(
            f"{stopped:,} of {len(predictions):,} texts were stopped at "
            f"decode.max_new_tokens={settings.max_new_tokens}, or at the model's last position, "
            "before they came to an end; they are kept as they are"
        )
    if cut := sum(prediction.cut is True for prediction in predictions):
        progress.warn(
            f"{cut:,} of {len(predictions):,} prompts lost a part: longer than the model or "
            "task.max_length allows, or than decode.max_new_tokens leaves of the positions"
        )
    return predictions


def write_predictions(file: Path, predictions: Sequence[Prediction]) -> None:
    """Write JSON lines of `Prediction`, atomically and readable by their owner only.

    Prompts and references may be records that no guarantee covers.
    """
    write_atomic(file, spelled(predictions), mode=0o600)


def spelled(predictions: Sequence[Prediction]) -> str:
    """Return the text that `write_predictions` writes."""
    lines = []
    for one in predictions:
        known = {"source": one.source, "prediction": one.prediction, "references": one.references}
        more = {name: getattr(one, name) for name in _OPTIONAL}
        known |= {name: value for name, value in more.items() if value not in (None, "")}
        lines.append(json.dumps(known, ensure_ascii=False) + "\n")
    return "".join(lines)


def read_predictions(file: Path) -> list[Prediction]:
    """Return the predictions of a JSON-lines file of `write_predictions` or another program."""
    # Not splitlines: texts may hold other line separators, unescaped in JSON.
    lines = file_text(file, _EXPECTED).split("\n")
    if not lines[-1]:
        lines.pop()
    predictions = []
    for number, line in enumerate(lines, 1):
        try:
            predictions.append(Prediction(**_Line.model_validate_json(line).model_dump()))
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            value = f"{name} is {str(first['input'])[:80]!r}; " if name else ""
            said = f"{value}{first['msg']}; expected {_EXPECTED}"
            raise DataError(f"{file}, line {number}: {said}") from error
    if not predictions:
        raise DataError(f"{file} is empty; expected {_EXPECTED}")
    return predictions


def score_file(task: Task, file: Path, read: list[Prediction] | None = None) -> dict[str, Any]:
    """Return the scores of a predictions file, which may be ``read``, as a section of a record.

    Only published references leave a digest, or which of them were answered correctly
    (``correct``), in a record. ``distinct`` counts different answers where more than one prompt
    was answered, ``unfinished`` texts that were stopped before they ended, and ``cut_prompts``
    published questions that lost a part, where the file says so of all.
    """
    predictions = read or read_predictions(file)
    ends = [prediction.finished for prediction in predictions]
    cuts = [prediction.cut for prediction in predictions]
    counts = {} if None in ends else {"unfinished": ends.count(False)}
    answered = any(one.prediction or one.nll is None for one in predictions)
    prompts = {one.source for one in predictions}  # "" where the file does not say
    # Every model answers one prompt in one way.
    if answered and (len(prompts) > 1 or prompts == {""}):
        counts["distinct"] = len({prediction.prediction for prediction in predictions})
    if task.published and not task.unconditional and None not in cuts:
        counts["cut_prompts"] = cuts.count(True)
    try:
        metrics, more = dict(task.score(predictions)), task.additional_scores(predictions)
    except ValueError as error:
        raise DataError(f"{file}: {error}") from error
    digest: dict[str, Any] = {}
    if task.published:  # copies of a data set differ, and so do their scores
        references = "".join(json.dumps(one.references) for one in predictions)
        digest["references"] = hashlib.sha256(references.encode()).hexdigest()[:16]
        if "accuracy" in metrics:
            correct = [one.prediction == one.references[0] for one in predictions]
            digest["correct"] = packed(correct)
    return {
        "metrics": metrics,
        "examples": len(predictions),
        **more,
        **counts,
        **digest,
        **({"lower": list(task.lower)} if task.lower else {}),
        "signature": task.signature(),
    }
