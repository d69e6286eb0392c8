"""From measurements to ratios: formed step by step within each round, then over the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, TypeVar

from dpft.reproduce.bench.settings import BenchSettings

T = TypeVar("T")


@dataclass(frozen=True)
class Spread:
    """Median and range."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None where nothing was measured."""
        return cls(median(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class VariantSummary:
    """One variant over all rounds.

    Attributes:
        baseline: label of what the ratios are to.
        rounds: how many rounds have a ratio.
        seconds: per step.
        time_ratio: to the baseline of the same round, by `time_ratio`.
        peak_bytes: highest memory in use after warm-up; None where time alone was measured.
        memory_ratio: to the baseline of the same round.
        whole_ratio: the same of a whole run, with the steps that the clipper checks; None in
            measurements from before they were taken.
        gradient_norm: L2 norm of what the last step left as gradient; equal for all exact flat
            variants of equal tying.
        message: why it failed, where it did.
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


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """``items`` beginning ``turn`` places later: over the rounds each is first, second, and so on.

    >>> rotated(["a", "b", "c"], 1)
    ['b', 'c', 'a']
    """
    start = turn % len(items) if items else 0
    return [*items[start:], *items[:start]]


def time_ratio(result: Mapping[str, Any], baseline: Mapping[str, Any]) -> float:
    """The median over a round's steps of each to the mean of the two of the baseline around it.

    A result has ``seconds`` of its steps, and of those ``beside``, one more. Where nothing ran
    beside it, of one median to the other.
    """
    beside = result.get("beside")
    if not beside:
        return float(median(result["seconds"]) / median(baseline["seconds"]))
    around = [(before + after) / 2 for before, after in pairwise(beside)]
    return float(median(own / other for own, other in zip(result["seconds"], around, strict=True)))


def summarise(settings: BenchSettings, rows: Sequence[Mapping[str, Any]]) -> list[VariantSummary]:
    """One summary per variant, of measurements with ``round``, ``variant`` (label), ``result``."""
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
    """Of what both of a pair measured."""
    return Spread.of(
        [own[name] / other[name] for own, other in paired if name in own.keys() & other]
    )
