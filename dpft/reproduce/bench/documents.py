"""Results of ``dpft bench``: ratios over the rounds, and the JSON files that hold them."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import TypeAdapter

from dpft.config.errors import ConfigError
from dpft.reproduce.bench.catalog import BASELINE, BenchSettings
from dpft.reproduce.bench.measure import PRECISION, Spread, VariantSummary
from dpft.reproduce.tables.record_index import usual_folders

FOLDERS = ("runs/bench", "results/bench")
UNTIED = " (untied)"
# A largest batch's speed is measured once, without a repetition that would give its range.
_SPEED = 0.05
# With fewer, the range over rounds says too little of what another round would give.
_ROUNDS = 3
# RecursionError: of brackets nested a thousand deep.
_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


_SUMMARIES = TypeAdapter(list[VariantSummary])


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
    results = {(row["round"], row["variant"]): row["result"] for row in rows}
    summaries = []
    for variant in settings.variants:
        base = settings.baseline(variant).label
        mine = {turn: result for (turn, label), result in results.items() if label == variant.label}
        good = {turn: result for turn, result in mine.items() if result["status"] == "ok"}
        failures = [result["message"] for result in mine.values() if result["status"] != "ok"]
        paired = [
            (result, results[turn, base])
            for turn, result in good.items()
            if results.get((turn, base), {}).get("status") == "ok"
        ]
        both = [(a["peak_bytes"], b["peak_bytes"]) for a, b in paired if "peak_bytes" in a]
        peaks = [result["peak_bytes"] for result in good.values() if "peak_bytes" in result]
        summaries.append(
            VariantSummary(
                label=variant.label,
                peer=variant.peer,
                baseline=base,
                rounds=len(paired),
                seconds=Spread.of([median(result["seconds"]) for result in good.values()]),
                time_ratio=Spread.of([time_ratio(own, other) for own, other in paired]),
                peak_bytes=Spread.of(peaks),
                memory_ratio=Spread.of([own / other for own, other in both]),
                gradient_norm=next((r["gradient_norm"] for r in good.values()), None),
                message=failures[-1] if failures else None,
            )
        )
    return summaries


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
    styles: Mapping[str, VariantSummary] = field(default_factory=dict)

    @property
    def searched(self) -> bool:
        return any(one.batch is not None for one in self.styles.values())

    def of(self, style: str) -> VariantSummary:
        """Return the summary of a style; one without numbers where the file lacks it."""
        return self.styles.get(style, VariantSummary(style))

    def baseline(self, style: str) -> VariantSummary:
        """Return non-private training, tied or untied as the style's own model is."""
        return self.of(f"{BASELINE}{UNTIED if style.endswith(UNTIED) else ''}")

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
        one, base = self.of(name), self.baseline(name)
        if quantity in ("time", "memory"):
            known = one.time_ratio if quantity == "time" else one.memory_ratio
            return known if one.rounds >= _ROUNDS else None
        if quantity == "batch" and one.batch and base.batch:
            ratio = one.batch / base.batch
            return Spread(ratio, ratio * (1 - 1 / PRECISION), ratio)
        if quantity == "speed" and one.examples_per_second and base.examples_per_second:
            ratio = one.examples_per_second / base.examples_per_second
            return Spread(ratio, ratio * (1 - _SPEED), ratio * (1 + _SPEED))
        return None


def read_benches(folders: Iterable[Path] | None = None) -> tuple[list[BenchFile], list[str]]:
    """Return every file of results below the folders by path, and a line for each unreadable one.

    A file that is found twice counts once. JSON of other kinds is skipped. The folders are those
    that `usual_folders` returns for `FOLDERS`, unless others are given.
    """
    paths: dict[str, Path] = {}
    for folder in usual_folders(FOLDERS) if folders is None else folders:
        if not folder.is_dir():
            raise ConfigError(
                f"--bench {folder} is no folder; expected one with files of dpft bench"
            )
        for path in sorted(folder.rglob("*.json")):
            # Not Path.resolve, which raises where links go in a circle.
            paths.setdefault(os.path.realpath(path), path)
    read: list[BenchFile] = []
    damaged: list[str] = []
    for path in paths.values():
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if "summary" in content or "largest_batch" in content:
                read.append(_bench_file(path, content))
        except _DAMAGED as error:
            damaged.append(f"{path} cannot be read as a benchmark ({error!r})")
    return read, damaged


def _bench_file(path: Path, content: Mapping[str, Any]) -> BenchFile:
    settings = content["settings"]
    found = [one for one in content.get("largest_batch", ()) if not one["message"] and one["batch"]]
    summaries = _SUMMARIES.validate_python([*content.get("summary", ()), *found])
    return BenchFile(
        path=path,
        labels=tuple(map(str, content["labels"])),
        styles={one.label: one for one in summaries},
        **{name: settings[name] for name in ("model", "length", "batch", "device")},
    )
