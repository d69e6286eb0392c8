"""Tables of a benchmark, on the terminal and as Markdown, and the JSON that they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from dpft.report import markdown
from dpft.report.console import Console
from dpft.reproduce.bench.catalog import MODELS
from dpft.reproduce.bench.explain import fold
from dpft.reproduce.bench.largest import PRECISION, Largest
from dpft.reproduce.bench.settings import BenchSettings
from dpft.reproduce.bench.statistics import Spread, VariantSummary

SCHEMA_VERSION = 2
Cells = dict[str, str]
# Text that a narrow terminal may fold; figures stay whole.
_FOLDED = ("parameter", "group", "uses", "form")


def document(
    settings: BenchSettings,
    facts: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    summaries: Sequence[VariantSummary],
) -> dict[str, Any]:
    """Everything about a benchmark, as JSON data: settings, machine, raw measurements, summary."""
    return _head(settings, facts) | {
        "summary": [asdict(summary) for summary in summaries],
        "measurements": [
            {name: value for name, value in row.items() if name != "key"} for row in rows
        ],
    }


def largest_document(
    settings: BenchSettings, facts: Mapping[str, Any], found: Sequence[Largest]
) -> dict[str, Any]:
    """The same for ``--largest-batch``."""
    head = _head(settings, facts)
    head["command"] += " --largest-batch"
    return head | {"largest_batch": [asdict(one) for one in found]}


def _head(settings: BenchSettings, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "command": settings.command,
        "labels": labels(settings, facts),
        "settings": settings.job("measure")
        | {
            "device": facts["device"],
            "untied": settings.untied,
            "variants": [variant.label for variant in settings.variants],
            "rounds": settings.rounds,
        },
        "environment": facts["environment"],
    }


def labels(settings: BenchSettings, facts: Mapping[str, Any]) -> list[str]:
    """What a number of this benchmark must be read with."""
    info = MODELS[settings.model]
    environment = facts["environment"]
    parts = [settings.model]
    if info.head:
        parts.append("untied" if settings.untied else "tied")
    parts.append(f"B={settings.batch}")
    if settings.length is not None:
        parts.append(f"T={settings.length}")
    parts.append("bfloat16 autocast" if settings.dtype == "bfloat16" else settings.dtype)
    if facts["device"] == "cuda":
        parts.append(str(environment["gpu"]))
        parts += [f"at most {settings.memory:g} GiB"] if settings.memory is not None else []
    else:
        threads = f"{settings.threads} thread{'s' if settings.threads > 1 else ''}"
        parts.append(f"{environment['cpu']}, {threads}")
    parts.append(f"torch {environment['packages'].get('torch')}")
    return parts


def cells(summary: VariantSummary) -> Cells:
    """One row of the table."""
    seconds, peak = summary.seconds, summary.peak_bytes
    return {
        "style": summary.label,
        "seconds": "-" if seconds is None else _seconds(seconds.median),
        "time ratio": _median(summary.time_ratio),
        "time range": _range(summary.time_ratio),
        "peak MB": "-" if peak is None else f"{peak.median / 1e6:,.0f}",
        "memory ratio": _median(summary.memory_ratio),
        "memory range": _range(summary.memory_ratio),
        "whole run": _median(summary.whole_ratio),
    }


def remarks(found: Sequence[VariantSummary | Largest]) -> list[str]:
    """What failed, and why: nothing is dropped silently."""
    return [
        f"{one.label}"
        + (
            f" (measured in {one.rounds} rounds)"
            if isinstance(one, VariantSummary) and one.rounds
            else ""
        )
        + f": {one.message}"
        for one in found
        if one.message
    ]


def largest_cells(one: Largest, baseline: int) -> Cells:
    """One row of the table of largest batches."""
    return {
        "style": one.label,
        "largest batch": str(one.batch) if one.message is None else "-",
        "does not fit": "-" if one.too_large is None else str(one.too_large),
        "ratio": f"{one.batch / baseline:.2f}" if baseline and one.message is None else "-",
        "examples/s": "-" if one.examples_per_second is None else f"{one.examples_per_second:.1f}",
    }


def note(settings: BenchSettings, load: Sequence[float] | None) -> str:
    """What the table's columns mean; ``load`` are the machine's averages before the first round."""
    text = (
        "One step is forward, backward and clipping, without noise and optimizer. Medians and "
        f"ranges over {settings.rounds} interleaved rounds in fresh processes, {settings.steps} "
        "steps each. "
    )
    if not settings.time_only:
        text += (
            "Memory is the peak of steps that check no rules; that of a whole run counts those "
            "that do. "
        )
    if settings.device == "cuda":
        text += "Ratios to none, of the medians of each round."
    else:
        text += (
            "Steps alternate with those of a process of none; a ratio is that of a step to the "
            "mean of the two around it, and a round's is the median of its steps'."
        )
    if any(variant.marked for variant in settings.variants):
        text += " Peers run untied and are compared with none (untied)."
    if load:
        text += f" Load average of the machine when it began: {load[0]:.2f}."
    return text


def largest_note() -> str:
    """What the table of largest batches means."""
    return (
        "Largest batch that fits into the device's memory, by binary search in fresh processes, to "
        f"within 1/{PRECISION}."
    )


def as_markdown(title: str, rows: Sequence[Cells], notes: Sequence[str]) -> str:
    """A Markdown page: title, table, notes."""
    columns = list(rows[0])
    text = markdown.table(columns, ([row[column] for column in columns] for row in rows))
    return "\n\n".join([f"# {title}", text, *notes]) + "\n"


def show(title: str, rows: Sequence[Cells], notes: Sequence[str] = ()) -> None:
    """The same on the terminal."""
    console = Console()
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    columns = list(rows[0]) if rows else []
    for column in columns:
        text = column in ("style", *_FOLDED)
        table.add_column(
            column.replace(" ", "\n"),
            justify="left" if text else "right",
            overflow="fold",
            min_width=None if column in _FOLDED else max(len(row.get(column, "")) for row in rows),
        )
    for row in rows:
        table.add_row(*(row.get(column, "") for column in columns))
    console.print(table)
    console.print()
    for line in notes:
        console.print(line, highlight=False, markup=False, style="dim")


def show_explained(label: str, result: Mapping[str, Any]) -> None:
    """What the engine chose for one style."""
    if result["status"] != "ok":
        show(label, [], [result["message"]])
        return
    show(label, fold(result["entries"]))


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value >= 0.1 else f"{value:.4f}"


def _median(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.2f}"


def _range(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.min:.2f}–{spread.max:.2f}"
