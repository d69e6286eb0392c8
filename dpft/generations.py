"""Generated texts: decoded with live progress, written, read back and scored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpft.config import Decode
from dpft.decode import decode
from dpft.errors import DataError
from dpft.models import LoadedModel
from dpft.progress import Progress
from dpft.tasks.base import Prompt, Task


def generate(
    task: Task,
    loaded: LoadedModel,
    settings: Decode,
    prompts: Sequence[Prompt],
    seed: int,
    progress: Progress,
) -> list[str]:
    """Decode every prompt of a task with live progress."""
    encoded = [task.encode_prompt(prompt.source, loaded.tokenizer) for prompt in prompts]
    with progress.phase("decoding", len(set(encoded))) as advance:
        return decode(loaded.model, loaded.tokenizer, encoded, settings, seed, advance)


def write_generations(file: Path, prompts: Sequence[Prompt], texts: Sequence[str]) -> None:
    """JSON lines of ``source``, ``prediction`` and ``references``; whole or not at all."""
    lines = [
        json.dumps(
            {"source": p.source, "prediction": text, "references": list(p.references)},
            ensure_ascii=False,
        )
        for p, text in zip(prompts, texts, strict=True)
    ]
    temporary = file.with_suffix(".tmp")
    temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    temporary.replace(file)


def read_generations(file: Path) -> tuple[list[str], list[list[str]]]:
    """Predictions and references of a JSON-lines file.

    Raises:
        DataError: naming the line that is not of the form
            ``{"prediction": str, "references": [str, ...]}``.
    """
    expected = 'expected {"prediction": "...", "references": ["...", ...]}'
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}; {expected} on each line") from error
    predictions: list[str] = []
    references: list[list[str]] = []
    for number, line in enumerate(lines, 1):
        try:
            item = json.loads(line)
            prediction, refs = item["prediction"], item["references"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file}, line {number}: {error!r}; {expected}") from error
        strings = isinstance(refs, list) and refs and all(isinstance(r, str) for r in refs)
        if not isinstance(prediction, str) or not strings:
            raise DataError(f"{file}, line {number}: got {line[:80]}; {expected}")
        predictions.append(prediction)
        references.append(refs)
    if not predictions:
        raise DataError(f"{file} is empty; {expected} on each line")
    return predictions, references


def score_file(task: Task, file: Path) -> dict[str, Any]:
    """Scores of a generations file as a record's section."""
    predictions, references = read_generations(file)
    scores = task.score(predictions, references)
    return {"metrics": scores, "examples": len(predictions), "signature": task.signature()}
