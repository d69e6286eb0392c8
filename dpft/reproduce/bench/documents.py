"""Results of ``dpft bench``: ratios over the rounds, their table, plot and file."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import TypeAdapter

from dpft.config.errors import ConfigError
from dpft.report.text_table import TextTable
from dpft.reproduce.bench.choices import BASELINE, MODELS, PEERS, BenchSettings
from dpft.reproduce.tables.record_index import usual_folders

FOLDERS = ("runs/bench", "results/bench")
SCHEMA_VERSION = 2
# Files of a search for the largest batch: it was found to within a fiftieth, and its speed was
# measured once, without a repetition that would give its range.
_PRECISION, _SPEED = 1 / 50, 0.05
# With fewer, the range over rounds says too little of what another round would give.
_ROUNDS = 3
_DAMAGED = (OSError, ValueError, KeyError, TypeError)
_HEADINGS = ("style", "seconds", "time ratio (range)", "peak MB", "memory ratio (range)")


@dataclass(frozen=True)
class Spread:
    """Median and range."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return None where nothing was measured."""
        return cls(median(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class VariantSummary:
    """One variant over all rounds; None where something was not measured or failed.

    Ratios are to the baseline in the same round; ``rounds`` is how many succeeded.
    ``seconds`` are of a step, ``peak_bytes`` the highest memory in use after warm-up; ``message``
    is why it failed. Files of a search for the largest batch (Li et al. 2022, Appendix G) have the
    ``batch`` and ``examples_per_second`` at it.
    """

    label: str
    rounds: int = 0
    seconds: Spread | None = None
    time_ratio: Spread | None = None
    peak_bytes: Spread | None = None
    memory_ratio: Spread | None = None
    message: str | None = None
    batch: int | None = None
    examples_per_second: float | None = None


def summarise(settings: BenchSettings, rows: Sequence[Mapping[str, Any]]) -> list[VariantSummary]:
    """Return one summary per variant of rows with ``round``, ``variant`` and ``result``."""
    results = {(row["round"], row["variant"]): row["result"] for row in rows}
    summaries = []
    for name in settings.variants:
        mine = {turn: result for (turn, label), result in results.items() if label == name}
        good = {turn: result for turn, result in mine.items() if result["status"] == "ok"}
        failures = [result["message"] for result in mine.values() if result["status"] != "ok"]
        paired = [(result, results[turn, BASELINE]) for turn, result in good.items()]
        summaries.append(
            VariantSummary(
                label=name,
                rounds=len(paired),
                seconds=Spread.of([median(result["seconds"]) for result in good.values()]),
                time_ratio=Spread.of([_time_ratio(own, other) for own, other in paired]),
                peak_bytes=Spread.of([result["peak_bytes"] for result in good.values()]),
                memory_ratio=Spread.of([a["peak_bytes"] / b["peak_bytes"] for a, b in paired]),
                message=failures[-1] if failures else None,
            )
        )
    return summaries


def _time_ratio(result: Mapping[str, Any], baseline: Mapping[str, Any]) -> float:
    """Return the median over steps of each to the mean of the two of the baseline around it.

    A result has ``seconds`` of its steps and, where the two alternated, in ``baseline_seconds``
    one more of the baseline. Otherwise the ratio is that of the two medians.
    """
    if not (alternated := result.get("baseline_seconds")):
        return float(median(result["seconds"]) / median(baseline["seconds"]))
    around = [(before + after) / 2 for before, after in pairwise(alternated)]
    return float(median(own / other for own, other in zip(result["seconds"], around, strict=True)))


def labels(settings: BenchSettings, facts: Mapping[str, Any]) -> list[str]:
    """Return what a number of this benchmark must be read with."""
    known, parts = facts["environment"], [settings.model]
    if MODELS[settings.model].head:
        parts.append("untied" if settings.untied else "tied")
    parts.append(f"B={settings.batch}")
    parts += [] if settings.length is None else [f"T={settings.length}"]
    parts.append("bfloat16 autocast" if settings.dtype == "bfloat16" else settings.dtype)
    threads = f"{settings.threads} thread{'s' if settings.threads > 1 else ''}"
    parts.append(str(known["gpu"]) if facts["device"] == "cuda" else f"{known['cpu']}, {threads}")
    return [*parts, f"torch {known['packages'].get('torch')}"]


def table(
    settings: BenchSettings,
    facts: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    summaries: Sequence[VariantSummary],
) -> TextTable:
    """Return a row for each variant, with notes on the columns and on what failed."""

    def ratio(spread: Spread | None) -> str:
        return f"{spread.median:.2f} ({spread.min:.2f}–{spread.max:.2f})" if spread else "-"

    cells = []
    for one in summaries:
        seconds = f"{one.seconds.median:.4f}" if one.seconds else "-"
        peak = f"{one.peak_bytes.median / 1e6:,.0f}" if one.peak_bytes else "-"
        cells.append((one.label, seconds, ratio(one.time_ratio), peak, ratio(one.memory_ratio)))
    how = "of each round"
    if settings.device != "cuda":
        how = "of steps to the mean of the two steps of none before and after each"
    note = (
        "One step is forward, backward and clipping, without noise and optimizer. Medians and "
        f"ranges over {settings.rounds} interleaved rounds in fresh processes, {settings.steps} "
        f"steps each. Ratios to none are medians {how}. Load average of the machine at the start: "
        f"{rows[0]['load'][0]:.2f}."
    )
    failed = [
        (one.label, f"{one.message} (measured in {one.rounds} rounds)")
        for one in summaries
        if one.message
    ]
    notes = [("Measured", note), *failed, ("Command", settings.command)]
    return TextTable(_HEADINGS, cells, ", ".join(labels(settings, facts)), 1, notes)


def document(
    settings: BenchSettings,
    facts: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    summaries: Sequence[VariantSummary],
) -> dict[str, Any]:
    """Return settings, machine and results as JSON data, which `read_benches` reads."""
    known = {**settings.job("measure"), "variants": settings.variants, "rounds": settings.rounds}
    return {
        "schema_version": SCHEMA_VERSION,
        "command": settings.command,
        "labels": labels(settings, facts),
        "settings": known,
        "environment": facts["environment"],
        "summary": [asdict(one) for one in summaries],
        "measurements": rows,
    }


def plot(summaries: Sequence[VariantSummary], title: str, path: Path) -> None:
    """Draw the ratios as a PNG: medians as points, ranges as lines, non-private at 1."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    shown = [s for s in summaries if s.time_ratio is not None and s.label != BASELINE]
    panels = {
        "time per step / non-private": [s.time_ratio for s in shown],
        "peak memory / non-private": [s.memory_ratio for s in shown],
    }
    with rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(7.5, 1.5 + 0.32 * max(1, len(shown))), layout="constrained")
        drawn = figure.subplots(1, 2, sharey=True)
        for axes, (label, spreads) in zip(drawn, panels.items(), strict=True):
            axes.axvline(1.0, color="0.6", linewidth=1, zorder=0)
            for place, (summary, spread) in enumerate(zip(shown, spreads, strict=True)):
                if spread is None:
                    continue
                # Ours and peers differ in their markers too, for print in grey.
                colour, marker = ("#b35900", "s") if summary.label in PEERS else ("#1f4e79", "o")
                axes.plot([spread.min, spread.max], [place, place], color=colour)
                axes.plot(spread.median, place, marker, color=colour, markersize=5)
                axes.text(spread.max, place, f" {spread.median:.2f}", va="center", fontsize=8)
            axes.set_xlabel(label)
            most = max((spread.max for spread in spreads if spread is not None), default=1.0)
            axes.set_xlim(0, 1.2 * max(1.0, most))
            axes.grid(axis="y", color="0.92")
        drawn[0].set_yticks(range(len(shown)), [s.label for s in shown])
        drawn[0].set_ylim(len(shown) - 0.4, -0.6)
        figure.suptitle(title, fontsize=9)
        figure.savefig(path, dpi=200)


@dataclass(frozen=True)
class BenchFile:
    """One file of results.

    ``labels`` are what its numbers must be read with: model, shape, number type, device, torch.
    """

    path: Path
    model: str
    length: int | None
    batch: int
    device: str
    labels: tuple[str, ...]
    styles: Mapping[str, VariantSummary] = field(default_factory=dict)

    def of(self, style: str) -> VariantSummary:
        """Return the summary of a style; one without numbers where the file lacks it."""
        return self.styles.get(style, VariantSummary(style))

    def ratio(self, quantity: str, first: str, second: str) -> Spread | None:
        """Return ``first`` to ``second``; None unless the file has both.

        Of two styles that were each measured against the baseline the range is the widest that the
        two ranges allow.
        """
        one, two = (self._relative(quantity, name) for name in (first, second))
        if one is None or two is None or min(two.min, two.median) <= 0:
            return None
        return Spread(one.median / two.median, one.min / two.max, one.max / two.min)

    def _relative(self, quantity: str, name: str) -> Spread | None:
        if name == BASELINE:
            return Spread(1.0, 1.0, 1.0) if self.styles else None
        one, base = self.of(name), self.of(BASELINE)
        if quantity in ("time", "memory"):
            known = one.time_ratio if quantity == "time" else one.memory_ratio
            return known if one.rounds >= _ROUNDS else None
        if quantity == "batch" and one.batch and base.batch:
            ratio = one.batch / base.batch
            return Spread(ratio, ratio * (1 - _PRECISION), ratio)
        if quantity == "speed" and one.examples_per_second and base.examples_per_second:
            ratio = one.examples_per_second / base.examples_per_second
            return Spread(ratio, ratio * (1 - _SPEED), ratio * (1 + _SPEED))
        return None


_SUMMARIES = TypeAdapter(list[VariantSummary])


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
            if "summary" not in content:
                continue
            known = {k: content["settings"][k] for k in ("model", "length", "batch", "device")}
            styles = {one.label: one for one in _SUMMARIES.validate_python(content["summary"])}
            marks = tuple(map(str, content["labels"]))
            read.append(BenchFile(path=path, labels=marks, styles=styles, **known))
        except _DAMAGED as error:
            damaged.append(f"{path} cannot be read as a benchmark ({error!r})")
    return read, damaged
