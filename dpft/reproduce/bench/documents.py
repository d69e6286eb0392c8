"""Results of ``dpft bench``: ratios over the rounds, and the JSON files that hold them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from dpft.config.errors import ConfigError
from dpft.reproduce.bench.catalog import BASELINE, BenchSettings
from dpft.reproduce.bench.measure import PRECISION
from dpft.reproduce.tables.record_index import usual_folders

FOLDERS = ("runs/bench", "results/bench")
UNTIED = " (untied)"
# A largest batch's speed is measured once, without a repetition that would give its range.
_SPEED = 0.05
# With fewer, the range over rounds says too little of what another round would give.
_ROUNDS = 3
# RecursionError: of brackets nested a thousand deep.
_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Spread:
    """Median and range."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return None where nothing was measured."""
        return cls(median(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class VariantSummary:
    """One variant over all rounds; ``message`` is why it failed, where it did.

    Ratios are to the variant ``baseline`` in the same round; ``rounds`` is how many have one.
    ``seconds`` are of a step, ``peak_bytes`` the highest memory in use after warm-up;
    ``whole_ratio`` is of a whole run, with the steps that the clipper checks. ``gradient_norm`` is
    the L2 norm of what the last step left as gradient: equal for all exact flat variants of equal
    tying.
    """

    label: str
    peer: bool
    baseline: str
    rounds: int
    seconds: Spread | None
    time_ratio: Spread | None
    peak_bytes: Spread | None
    memory_ratio: Spread | None
    whole_ratio: Spread | None
    gradient_norm: float | None
    message: str | None


def time_ratio(result: Mapping[str, Any], baseline: Mapping[str, Any]) -> float:
    """Return the median over steps of each to the mean of the two of the baseline around it.

    A result has ``seconds`` of its own steps and, where the two alternated, ``beside``, one more of
    the baseline. Otherwise the ratio is that of the two medians.
    """
    beside = result.get("beside")
    if not beside:
        return float(median(result["seconds"]) / median(baseline["seconds"]))
    around = [(before + after) / 2 for before, after in pairwise(beside)]
    return float(median(own / other for own, other in zip(result["seconds"], around, strict=True)))


def summarise(settings: BenchSettings, rows: Sequence[Mapping[str, Any]]) -> list[VariantSummary]:
    """Return one summary per variant of rows with ``round``, ``variant`` and ``result``."""
    results: dict[tuple[int, str], Mapping[str, Any]] = {
        (row["round"], row["variant"]): row["result"] for row in rows
    }
    summaries = []
    for variant in settings.variants:
        base = settings.baseline(variant).label
        mine = {turn: result for (turn, label), result in results.items() if label == variant.label}
        good = {turn: result for turn, result in mine.items() if result["status"] == "ok"}
        paired = [
            (result, results[turn, base])
            for turn, result in good.items()
            if results.get((turn, base), {}).get("status") == "ok"
        ]
        failures = [result for result in mine.values() if result["status"] != "ok"]
        summaries.append(
            VariantSummary(
                label=variant.label,
                peer=variant.peer,
                baseline=base,
                rounds=len(paired),
                seconds=Spread.of([median(result["seconds"]) for result in good.values()]),
                time_ratio=Spread.of([time_ratio(own, other) for own, other in paired]),
                peak_bytes=Spread.of(
                    [result["peak_bytes"] for result in good.values() if "peak_bytes" in result]
                ),
                memory_ratio=_ratios(paired, "peak_bytes"),
                whole_ratio=_ratios(paired, "whole_peak_bytes"),
                gradient_norm=next((r["gradient_norm"] for r in good.values()), None),
                message=failures[-1]["message"] if failures else None,
            )
        )
    return summaries


def _ratios(
    paired: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], name: str
) -> Spread | None:
    """Return the ratios of what both of a pair measured."""
    return Spread.of(
        [own[name] / other[name] for own, other in paired if name in own.keys() & other]
    )


@dataclass(frozen=True)
class Measured:
    """One style in one file; None where something was not measured or failed.

    ``seconds`` are of a step, ``peak`` is in bytes; ``time`` and ``memory`` are relative to
    non-private training; ``speed`` is in records a second at the largest ``batch`` that fits.
    """

    rounds: int = 0
    seconds: Spread | None = None
    time: Spread | None = None
    peak: Spread | None = None
    memory: Spread | None = None
    batch: int | None = None
    speed: float | None = None


@dataclass(frozen=True)
class BenchFile:
    """One file of results.

    ``labels`` are what its numbers must be read with: model, shape, number type, device, torch.
    ``styles`` have their names in the file, `UNTIED` and all.
    """

    path: Path
    model: str
    length: int | None
    batch: int
    device: str
    labels: tuple[str, ...]
    styles: Mapping[str, Measured] = field(default_factory=dict)

    @property
    def searched(self) -> bool:
        """Return whether it is of a search for the largest batch."""
        return any(one.batch is not None for one in self.styles.values())

    def baseline(self, style: str) -> Measured:
        """Return non-private training, tied or untied as the style's own model is."""
        untied = UNTIED if style.endswith(UNTIED) else ""
        return self.styles.get(f"{BASELINE}{untied}", Measured())

    def ratio(self, quantity: str, first: str, second: str) -> Spread | None:
        """Return ``first`` to ``second``; None unless the file has both, of one model.

        Of two styles that were each measured against the baseline the range is the widest that the
        two ranges allow. Styles have names without `UNTIED`; the untied one counts where there is
        one.
        """
        names = [
            f"{style}{UNTIED}" if style != BASELINE and f"{style}{UNTIED}" in self.styles else style
            for style in (first, second)
        ]
        if BASELINE not in (first, second) and len({n.endswith(UNTIED) for n in names}) > 1:
            return None  # their ratios are to different models
        one, two = (self._relative(quantity, name) for name in names)
        if one is None or two is None or min(two.min, two.median) <= 0:
            return None
        return Spread(one.median / two.median, one.min / two.max, one.max / two.min)

    def _relative(self, quantity: str, name: str) -> Spread | None:
        if name == BASELINE:
            return Spread(1.0, 1.0, 1.0) if self.styles else None
        one, base = self.styles.get(name, Measured()), self.baseline(name)
        if quantity in ("time", "memory"):
            known: Spread | None = getattr(one, quantity)
            return known if one.rounds >= _ROUNDS else None
        if quantity == "batch" and one.batch and base.batch:
            ratio = one.batch / base.batch
            return Spread(ratio, ratio * (1 - 1 / PRECISION), ratio)
        if quantity == "speed" and one.speed and base.speed:
            ratio = one.speed / base.speed
            return Spread(ratio, ratio * (1 - _SPEED), ratio * (1 + _SPEED))
        return None


def read_benches(folders: Iterable[Path] | None = None) -> tuple[list[BenchFile], list[str]]:
    """Return every file of results below the folders by path, and a line for each unreadable one.

    A file that is found twice counts once. JSON of other kinds is skipped. The folders are those
    that `usual_folders` returns for `FOLDERS`, unless others are given.
    """
    if folders is None:
        folders = usual_folders(FOLDERS)
    read: list[BenchFile] = []
    damaged: list[str] = []
    seen: set[str] = set()
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(
                f"--bench {folder} is no folder; expected one with files of dpft bench"
            )
        for path in sorted(folder.rglob("*.json")):
            # Not Path.resolve, which raises where links go in a circle.
            real = os.path.realpath(path)
            if real in seen:
                continue
            seen.add(real)
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
                if "summary" in content or "largest_batch" in content:
                    read.append(_bench_file(path, content))
            except _DAMAGED as error:
                damaged.append(f"{path} cannot be read as a benchmark ({error!r})")
    return read, damaged


def _bench_file(path: Path, content: Mapping[str, Any]) -> BenchFile:
    settings, length = content["settings"], content["settings"]["length"]
    styles = {str(one["label"]): _measured(one) for one in content.get("summary", ())}
    for one in content.get("largest_batch", ()):
        if one.get("message") is None and one["batch"]:
            styles[str(one["label"])] = Measured(
                batch=int(one["batch"]), speed=one["examples_per_second"]
            )
    return BenchFile(
        path=path,
        model=str(settings["model"]),
        length=None if length is None else int(length),
        batch=int(settings["batch"]),
        device=str(settings["device"]),
        labels=tuple(map(str, content["labels"])),
        styles=styles,
    )


def _measured(one: Mapping[str, Any]) -> Measured:
    def spread(name: str) -> Spread | None:
        return None if one.get(name) is None else Spread(**one[name])

    return Measured(
        *(int(one["rounds"]), spread("seconds"), spread("time_ratio")),
        peak=spread("peak_bytes"),
        memory=spread("memory_ratio"),
    )
