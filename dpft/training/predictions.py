"""Predictions of a split: made with live progress, written, read back and scored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from dpft.config.errors import DataError
from dpft.config.files import regular
from dpft.config.schema import Decode
from dpft.models.load import LoadedModel
from dpft.parallel.cohort import SingleProcess, TrainingCohort, together
from dpft.runs.atomic import write_atomic
from dpft.runs.errors import disk_report
from dpft.runs.memory import explained
from dpft.tasks.base import Task
from dpft.tasks.metrics.correct import packed
from dpft.tasks.objectives.base import Instance, Prediction
from dpft.tasks.objectives.causal import Causal
from dpft.tasks.scores import all_scores
from dpft.training.progress import Progress

_EXPECTED = 'expected {"prediction": "...", "references": ["...", ...]} on each line'
_OPTIONAL = ("subset", "nll", "tokens", "finished", "cut")


def _not_negative(nll: float | None) -> float | None:
    if nll is not None and nll < 0:  # which nan is not: a model that diverged writes it
        raise ValueError("a likelihood is at most 1")
    return nll


def _text(value: Any) -> str:
    """What another program may have written as a number, or as null where there is none."""
    return "" if value is None else str(value)


class _Line(BaseModel, strict=True):
    """One line of a predictions file, see `Prediction`; what else is in it is ignored."""

    source: Annotated[str, BeforeValidator(_text)] = ""
    prediction: str
    references: Annotated[tuple[str, ...], Field(min_length=1)]
    subset: Annotated[str, BeforeValidator(_text)] = ""
    nll: Annotated[float | None, AfterValidator(_not_negative)] = None
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
    """Answer every instance, of ``settings.split``, with live progress.

    With a warning if prompts were cut, or if texts were stopped before they ended: they are scored
    as they are.

    Args:
        task: of the instances.
        loaded: the whole model, the same on all ranks.
        instances: all of them, on all ranks.
        settings: how to decode.
        seed: for sampling.
        progress: counts what all ranks have done.
        cohort: ranks that each answer some batches, and all return all answers; None: this one.

    Raises:
        RankError: if another rank failed, or has other instances.
        TrainingError: if memory runs out.
    """
    several, size = cohort or SingleProcess(), settings.batch_size
    advice = (
        f"type dpft decode RUN decode.batch_size={size // 2}; what was trained is kept"
        if size > 1
        else "type fewer decode.beams or decode.max_new_tokens, or take a machine with more"
    )
    with (
        explained(f"decoding with decode.batch_size={size}", advice),
        progress.phase("predicting", len(instances)) as advance,
        together(several),
    ):
        objective = task.objective(loaded)
        predictions = objective.predict(loaded.model, instances, settings, seed, advance, several)
    stopped = sum(prediction.finished is False for prediction in predictions)
    if stopped:
        progress.warn(
            f"{stopped:,} of {len(predictions):,} texts were stopped at "
            f"decode.max_new_tokens={settings.max_new_tokens}, or at the model's last position, "
            "before they came to an end; they are kept as they are"
        )
    cut = sum(prediction.cut is True for prediction in predictions)
    if cut:
        limit = (
            objective.too_long_for(settings)
            if isinstance(objective, Causal)
            else "the model or task.max_length allows"
        )
        plain = task.unconditional
        what, lost = ("texts", "their end") if plain else ("prompts", "a part of their source")
        progress.warn(
            f"{cut:,} of {len(predictions):,} {what} were longer than {limit}, and lost {lost}"
        )
    return predictions


def write_predictions(file: Path, predictions: Sequence[Prediction]) -> None:
    """JSON lines of ``source``, ``prediction``, ``references`` and what else is known of them.

    The file is there whole or not at all, and its owner's alone: prompts and references may be
    records that no guarantee covers.

    Raises:
        DataError: if it cannot be written.
    """
    try:
        write_atomic(file, spelled(predictions), mode=0o600)
    except OSError as error:
        raise DataError(f"cannot write {file}: {disk_report(file.parent, error)}") from error


def spelled(predictions: Sequence[Prediction]) -> str:
    """What `write_predictions` writes."""
    return "".join(json.dumps(_item(p), ensure_ascii=False) + "\n" for p in predictions)


def read_predictions(file: Path) -> list[Prediction]:
    """Predictions of a JSON-lines file; what `write_predictions` wrote, or another program.

    Raises:
        DataError: naming the line that is not of the form
            ``{"prediction": str, "references": [str, ...]}``.
    """
    try:
        # Not splitlines: texts may hold other line separators, unescaped in JSON.
        lines = regular(file).read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}; {_EXPECTED}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text ({error}); {_EXPECTED}") from error
    if lines and not lines[-1]:
        lines.pop()
    predictions = [_parsed(file, number, line) for number, line in enumerate(lines, 1)]
    if not predictions:
        raise DataError(f"{file} is empty; {_EXPECTED}")
    return predictions


def score_file(
    task: Task, file: Path, predictions: Sequence[Prediction] | None = None
) -> dict[str, Any]:
    """Scores of a predictions file, or of its ``predictions`` as joined, as a record's section.

    With a digest of the references only if they are published: what is held out of private data, or
    is the user's own, leaves no hash of itself in a record; nor which of them were answered rightly
    (``correct``). ``distinct`` counts different answers, where answers were asked for, and not
    likelihoods alone, of more than one prompt. Where the file says so of all,
    ``unfinished`` counts the texts that were stopped before they ended, and ``cut_prompts``, of
    published data, the questions that lost a part.
    """
    if predictions is None:
        predictions = read_predictions(file)
    ends = [prediction.finished for prediction in predictions]
    cuts = [prediction.cut for prediction in predictions]
    counts = {} if None in ends else {"unfinished": ends.count(False)}
    asked = any(one.prediction or one.nll is None for one in predictions)
    prompts = {one.source for one in predictions}  # "" where the file does not say
    # One prompt is answered alike by whatever model.
    if asked and (len(prompts) > 1 or prompts == {""}):
        counts["distinct"] = len({prediction.prediction for prediction in predictions})
    if task.published and not task.unconditional and None not in cuts:
        counts["cut_prompts"] = cuts.count(True)
    digest = {"references": _digest(predictions)} if task.published else {}
    try:
        (metrics, signature), beside = all_scores(task, predictions), task.beside(predictions)
    except ValueError as error:  # what a scorer cannot make a number of
        raise DataError(f"{file}: {error}") from error
    if task.published and "accuracy" in metrics:
        digest["correct"] = packed([one.prediction == one.references[0] for one in predictions])
    return {
        "metrics": metrics,
        "examples": len(predictions),
        **beside,
        **counts,
        **digest,
        "signature": signature,
    }


def _digest(predictions: Sequence[Prediction]) -> str:
    """SHA-256 (16 hex) of the references: copies of a data set differ, and so do their scores."""
    digest = hashlib.sha256()
    for prediction in predictions:
        digest.update(json.dumps(prediction.references).encode())
    return digest.hexdigest()[:16]


def _item(prediction: Prediction) -> dict[str, Any]:
    item: dict[str, Any] = {
        "source": prediction.source,
        "prediction": prediction.prediction,
        "references": list(prediction.references),
    }
    for name in _OPTIONAL:
        value = getattr(prediction, name)
        if value not in (None, ""):
            item[name] = value
    return item


def _parsed(file: Path, number: int, line: str) -> Prediction:
    try:
        return Prediction(**_Line.model_validate_json(line).model_dump())
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        value = f"{name} is {str(first['input'])[:80]!r}; " if name else ""
        raise DataError(f"{file}, line {number}: {value}{first['msg']}; {_EXPECTED}") from error
