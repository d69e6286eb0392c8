"""Tables of a benchmark on the terminal and as Markdown, its plot, and the JSON of its results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from dpft.report import markdown
from dpft.report.console import Console
from dpft.reproduce.bench.catalog import MODELS, BenchSettings
from dpft.reproduce.bench.measure import PRECISION, Spread, VariantSummary

SCHEMA_VERSION = 2
Cells = dict[str, str]
LARGEST_NOTE = (
    "Largest batch that fits into the device's memory, by binary search in fresh processes, to "
    f"within 1/{PRECISION}."
)
# Ours and peers differ in their markers too, for print in grey.
_OURS: dict[str, Any] = {"color": "#1f4e79", "marker": "o"}
_PEERS: dict[str, Any] = {"color": "#b35900", "marker": "s"}
_STYLE: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


def document(
    settings: BenchSettings, facts: Mapping[str, Any], command: str, **results: Any
) -> dict[str, Any]:
    """Return settings, machine and results as JSON data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "labels": labels(settings, facts),
        "settings": {
            **settings.job("measure"),
            "device": facts["device"],
            "untied": settings.untied,
            "variants": [variant.label for variant in settings.variants],
            "rounds": settings.rounds,
        },
        "environment": facts["environment"],
        **results,
    }


def labels(settings: BenchSettings, facts: Mapping[str, Any]) -> list[str]:
    """Return what a number of this benchmark must be read with."""
    info = MODELS[settings.model]
    environment = facts["environment"]
    parts = [settings.model]
    parts += ["untied" if settings.untied else "tied"] if info.head else []
    parts.append(f"B={settings.batch}")
    parts += [] if settings.length is None else [f"T={settings.length}"]
    parts.append("bfloat16 autocast" if settings.dtype == "bfloat16" else settings.dtype)
    if facts["device"] == "cuda":
        parts.append(str(environment["gpu"]))
        parts += [f"at most {settings.memory:g} GiB"] if settings.memory is not None else []
    else:
        threads = f"{settings.threads} thread{'s' if settings.threads > 1 else ''}"
        parts.append(f"{environment['cpu']}, {threads}")
    return [*parts, f"torch {environment['packages'].get('torch')}"]


def cells(summary: VariantSummary) -> Cells:
    """Return one row of the table."""

    def middle(spread: Spread | None) -> str:
        return "-" if spread is None else f"{spread.median:.2f}"

    def ends(spread: Spread | None) -> str:
        return "-" if spread is None else f"{spread.min:.2f}–{spread.max:.2f}"

    seconds, peak = summary.seconds, summary.peak_bytes
    digits = 3 if seconds is not None and seconds.median >= 0.1 else 4
    return {
        "style": summary.label,
        "seconds": "-" if seconds is None else f"{seconds.median:.{digits}f}",
        "time ratio": middle(summary.time_ratio),
        "time range": ends(summary.time_ratio),
        "peak MB": "-" if peak is None else f"{peak.median / 1e6:,.0f}",
        "memory ratio": middle(summary.memory_ratio),
        "memory range": ends(summary.memory_ratio),
    }


def largest_cells(one: VariantSummary, baseline: int | None) -> Cells:
    """Return one row of the table of largest batches."""
    return {
        "style": one.label,
        "largest batch": "-" if one.batch is None else str(one.batch),
        "does not fit": "-" if one.too_large is None else str(one.too_large),
        "ratio": f"{one.batch / baseline:.2f}" if one.batch is not None and baseline else "-",
        "examples/s": "-" if one.examples_per_second is None else f"{one.examples_per_second:.1f}",
    }


def remarks(found: Sequence[VariantSummary]) -> list[str]:
    """Return what failed, and why: nothing is dropped silently."""
    failed = [one for one in found if one.message]
    some = [f" (measured in {one.rounds} rounds)" if one.rounds else "" for one in failed]
    return [f"{one.label}{rounds}: {one.message}" for one, rounds in zip(failed, some, strict=True)]


def note(settings: BenchSettings, load: Sequence[float] | None) -> str:
    """Return what the columns mean; ``load`` are the machine's averages before the first round."""
    text = (
        "One step is forward, backward and clipping, without noise and optimizer. Medians and "
        f"ranges over {settings.rounds} interleaved rounds in fresh processes, {settings.steps} "
        "steps each. Ratios to none are medians "
    )
    if settings.device == "cuda":
        text += "of each round."
    else:
        text += "of steps to the mean of the two steps of none around each."
    if any(variant.marked for variant in settings.variants):
        text += " Peers run untied and are compared with none (untied)."
    if load:
        text += f" Load average of the machine when it began: {load[0]:.2f}."
    return text


def as_markdown(title: str, rows: Sequence[Cells], notes: Sequence[str]) -> str:
    """Return a Markdown page: title, table, notes."""
    columns = list(rows[0])
    text = markdown.table(columns, ([row[column] for column in columns] for row in rows))
    return "\n\n".join([f"# {title}", text, *notes]) + "\n"


def show(title: str, rows: Sequence[Cells], notes: Sequence[str]) -> None:
    """Print the same on the terminal; figures stay whole in a narrow one."""
    console = Console()
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in rows[0]:
        table.add_column(
            column.replace(" ", "\n"),
            justify="left" if column == "style" else "right",
            min_width=max(len(row[column]) for row in rows),
        )
    for row in rows:
        table.add_row(*row.values())
    console.print(table)
    for line in notes:
        console.print(line, highlight=False, markup=False, style="dim")


def plot(summaries: Sequence[VariantSummary], title: str, path: Path) -> None:
    """Draw the ratios as a PNG: medians as points, ranges as lines, non-private at 1."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    shown = [s for s in summaries if s.time_ratio is not None and s.label != s.baseline]
    panels = {"time per step / non-private": [s.time_ratio for s in shown]}
    if any(s.memory_ratio for s in shown):
        panels["peak memory / non-private"] = [s.memory_ratio for s in shown]
    with rc_context(_STYLE):
        figure = Figure(figsize=(7.5, 1.5 + 0.32 * max(1, len(shown))), layout="constrained")
        drawn = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (label, spreads) in zip(drawn, panels.items(), strict=True):
            axes.axvline(1.0, color="0.6", linewidth=1, zorder=0)
            for place, (summary, spread) in enumerate(zip(shown, spreads, strict=True)):
                if spread is None:
                    continue
                look = _PEERS if summary.peer else _OURS
                axes.plot([spread.min, spread.max], [place, place], color=look["color"])
                axes.plot(spread.median, place, linestyle="none", markersize=5, **look)
                axes.text(spread.max, place, f" {spread.median:.2f}", va="center", fontsize=8)
            axes.set_xlabel(label)
            axes.margins(x=0.15)
            axes.set_xlim(left=0)
            axes.grid(axis="y", color="0.92")
        drawn[0].set_yticks(range(len(shown)), [s.label for s in shown])
        drawn[0].set_ylim(len(shown) - 0.4, -0.6)
        figure.suptitle(title, fontsize=9)
        figure.savefig(path, dpi=200)
