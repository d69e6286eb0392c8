"""What ``dpft bench`` wrote, as far as figures need it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpft.reproduce.bench.documents import read_documents

_THREADS = re.compile(r", \d+ threads?$")


@dataclass(frozen=True)
class Measured:
    """A style in one benchmark; medians, None where it was not measured or failed.

    Attributes:
        time: seconds of a step relative to non-private training.
        memory: peak relative to non-private training.
        peak: bytes.
        seconds: of a step.
        batch: the largest that fits.
        speed: records a second at that batch.
    """

    time: float | None = None
    memory: float | None = None
    peak: float | None = None
    seconds: float | None = None
    batch: float | None = None
    speed: float | None = None


@dataclass(frozen=True)
class Bench:
    """One file.

    Attributes:
        path: where it lies.
        model: name of the model.
        labels: what its numbers must be read with: shapes, hardware, versions.
        records: of a step.
        styles: by label.
    """

    path: Path
    model: str
    labels: tuple[str, ...]
    records: int
    styles: Mapping[str, Measured] = field(default_factory=dict)

    @property
    def setting(self) -> tuple[str, ...]:
        """What must agree for two models to stand in one panel: all labels but the model."""
        return self.labels[1:]

    @property
    def device(self) -> str:
        """The GPU or CPU, however many threads of it were used."""
        # Before the last, torch's version: see dpft.reproduce.bench.report.labels.
        return _THREADS.sub("", self.labels[-2]) if len(self.labels) > 1 else ""

    @property
    def of_process(self) -> bool:
        """Whether memory is the whole process's, as on a CPU: libraries, weights and all."""
        return len(self.labels) > 1 and _THREADS.search(self.labels[-2]) is not None

    @property
    def largest(self) -> bool:
        """Whether it searched for the largest batch."""
        return any(one.batch is not None for one in self.styles.values())


def read_benches(folders: Iterable[Path] | None = None) -> tuple[tuple[Bench, ...], list[str]]:
    """As `read_documents` finds them: benchmarks by path, and a line for each damaged file."""
    found, damaged = read_documents(_bench, folders)
    return tuple(found), damaged


def _bench(path: Path, document: Mapping[str, Any]) -> Bench:
    settings = document["settings"]
    styles = {str(one["label"]): _summary(one) for one in document.get("summary", ())}
    for one in document.get("largest_batch", ()):
        if one.get("message") is None:
            styles[str(one["label"])] = Measured(
                batch=float(one["batch"]), speed=_number(one["examples_per_second"])
            )
    return Bench(
        path,
        str(settings["model"]),
        tuple(str(label) for label in document["labels"]),
        int(settings["batch"]),
        styles,
    )


def _summary(one: Mapping[str, Any]) -> Measured:
    def median(name: str) -> float | None:
        spread = one.get(name)
        return None if spread is None else _number(spread["median"])

    return Measured(
        median("time_ratio"), median("memory_ratio"), median("peak_bytes"), median("seconds")
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
