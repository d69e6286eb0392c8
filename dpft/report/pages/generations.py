"""Samples of what a model wrote, and when prompts and references may stand beside them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.report.held_out import is_held_out
from dpft.report.pages.values import parsed, section
from dpft.runs.errors import RecordError
from dpft.runs.folders import generations_file

SAMPLES = 8


@dataclass(frozen=True)
class Sample:
    """One generation beside what was asked and what was expected."""

    source: str
    prediction: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class Generations:
    """Of the split that was decoded: some samples of ``total``, or why there are none.

    ``problems`` has a line for each sample that is damaged.
    """

    split: str
    total: int = 0
    samples: tuple[Sample, ...] = ()
    left_out: str | None = None
    problems: tuple[str, ...] = ()


def read_generations(
    path: Path,
    record: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    private: bool,
    asked: int | None,
    usual: int,
    prompts: Collection[str] = (),
) -> Generations | None:
    """Samples that are spread evenly over the generations of the split that was decoded.

    Args:
        path: of the run.
        record: says where they lie; None: where they usually do.
        config: of the run.
        private: whether what no guarantee covers may be shown.
        asked: how many samples were asked for.
        usual: how many to show where none were.
        prompts: of other runs' samples. Those of them that this run answered are shown, so that
            answers to one prompt stand side by side; if there are none, its own are chosen.

    Returns:
        None if there are no generations.

    Raises:
        RecordError: the record names a file that is none of the run's, or it is no text.
        OSError: the file cannot be read.
    """
    split = str(section(config, "decode").get("split", "test"))
    name = str(section(record or {}, "generations").get(split, f"generations/{split}.jsonl"))
    file = generations_file(path, name)
    if not file.is_file():
        return None
    reason = None if private else withheld(record, config, asked)
    if reason is not None:
        return Generations(split, left_out=reason)
    try:
        # Not splitlines: texts may hold other line separators, unescaped in JSON.
        lines = file.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise RecordError(f"{name} is not UTF-8: {error}") from error
    filled = [number for number, line in enumerate(lines, 1) if line]
    count = min(usual if asked is None else asked, len(filled))
    chosen = _lines_of(prompts, lines)[:count]
    chosen = chosen or [filled[place * len(filled) // count] for place in range(count)]
    samples = {number: _sample(lines[number - 1]) for number in chosen}
    return Generations(
        split,
        len(filled),
        tuple(sample for sample in samples.values() if sample is not None),
        problems=tuple(
            f"{name}, line {number}: no prediction with its references"
            for number, sample in samples.items()
            if sample is None
        ),
    )


def withheld(
    record: Mapping[str, Any] | None, config: Mapping[str, Any], asked: int | None
) -> str | None:
    """Why prompts and references of a run may not be shown; None if they may.

    Args:
        record: see `dpft.report.held_out`.
        config: of the run.
        asked: how many samples were asked for; a number is leave to show prompts of own data.
    """
    task = section(config, "task")
    if is_held_out({**(record or {}), "config": config}):
        return (
            "The prompts and references were held out from the private data, and no guarantee "
            "covers them: --private shows some, on a page that must not be published."
        )
    own = "train_file" in task and task.get("source") != "sample"
    if (own or ":" in str(task.get("name", ""))) and asked is None:
        return (
            "Whether prompts and references of your own data may be published is not known here: "
            f"if they may, --samples {SAMPLES} shows some."
        )
    return None


def _lines_of(prompts: Collection[str], lines: Sequence[str]) -> list[int]:
    """The first line, from 1, that answers each of the prompts."""
    found: dict[str, int] = {}
    if prompts:
        for number, line in enumerate(lines, 1):
            source = str((parsed(line) or {}).get("source", ""))
            if source in prompts:
                found.setdefault(source, number)
    return [found[prompt] for prompt in prompts if prompt in found]


def _sample(line: str) -> Sample | None:
    value = parsed(line) or {}
    prediction, references = value.get("prediction"), value.get("references")
    if not isinstance(prediction, str) or not isinstance(references, Sequence):
        return None
    texts = (references,) if isinstance(references, str) else tuple(map(str, references))
    return Sample(str(value.get("source", "")), prediction, texts)
