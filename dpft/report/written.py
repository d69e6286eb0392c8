"""What runs wrote for the same prompts, on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from dpft.report.console import Console
from dpft.report.pages.generations import Generations, read_generations

_PROMPTS = 2


def print_written(runs: Sequence[tuple[Path, Mapping[str, Any]]]) -> None:
    """Two prompts, evenly spread over those that the first run answered.

    Each with its first reference and every run's text for it.

    Args:
        runs: their folders and records, of one task. Prompts and references are printed, so that
            none of private data may be given.
    """
    console, table = Console(), Table.grid(padding=(0, 2))
    prompts: tuple[str, ...] = ()
    given: dict[str, Generations] = {}
    for path, record in runs:
        found = read_generations(path, record, record["config"], False, _PROMPTS, _PROMPTS, prompts)
        if found is not None:
            given[path.name] = found
            prompts = prompts or tuple(sample.source for sample in found.samples)
    for prompt in prompts:
        answers = {
            name: sample
            for name, found in given.items()
            for sample in found.samples
            if sample.source == prompt
        }
        table.add_row("asked", prompt)
        for name, sample in answers.items():
            table.add_row(name, sample.prediction)
        table.add_row("reference", next(iter(answers.values())).references[0])
        table.add_row()
    console.print(table)
