"""Time and memory of each variant relative to non-private training, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpft.reproduce.bench.largest import Largest
from dpft.reproduce.bench.statistics import Spread, VariantSummary

# Told apart in grey print by their markers as well.
_OURS: dict[str, Any] = {"color": "#1f4e79", "marker": "o"}
_PEERS: dict[str, Any] = {"color": "#b35900", "marker": "s"}
_STYLE: dict[Any, Any] = {
    **{"font.size": 9, "svg.hashsalt": "dpft"},
    **{"axes.spines.top": False, "axes.spines.right": False},
}


def plot(summaries: Sequence[VariantSummary], title: str, path: Path) -> None:
    """Time and memory side by side: medians as points, ranges as lines, non-private at 1.

    Variants without a ratio are left out, and memory where none was measured; ``path`` has no
    suffix.
    """
    shown = [s for s in summaries if s.time_ratio is not None and s.label != s.baseline]
    with rc_context(_STYLE):
        figure = Figure(figsize=(7.5, 1.5 + 0.32 * max(1, len(shown))), layout="constrained")
        panels = {"time per step / non-private": [s.time_ratio for s in shown]}
        if any(s.memory_ratio for s in shown) or not shown:
            panels["peak memory / non-private"] = [s.memory_ratio for s in shown]
        left, *rest = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (label, spreads) in zip([left, *rest], panels.items(), strict=True):
            _panel(axes, label, shown, spreads)
        left.set_yticks(range(len(shown)), [s.label for s in shown])
        left.set_ylim(len(shown) - 0.4, -0.6)
        figure.suptitle(title, fontsize=9)
        _save(figure, path)


def plot_largest(found: Sequence[Largest], title: str, path: Path) -> None:
    """Bars of the largest batches."""
    shown = [one for one in found if one.message is None]
    with rc_context(_STYLE):
        figure = Figure(figsize=(6, 1.3 + 0.32 * max(1, len(shown))), layout="constrained")
        axes = figure.subplots()
        bars = axes.barh(
            [one.label for one in shown], [one.batch for one in shown], color=_OURS["color"]
        )
        axes.bar_label(bars, padding=3)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("largest batch that fits")
        figure.suptitle(title, fontsize=9)
        _save(figure, path)


def _panel(
    axes: Axes, label: str, shown: Sequence[VariantSummary], spreads: Sequence[Spread | None]
) -> None:
    axes.axvline(1.0, color="0.6", linewidth=1, zorder=0)
    for place, (summary, spread) in enumerate(zip(shown, spreads, strict=True)):
        if spread is None:
            continue
        look = _PEERS if summary.peer else _OURS
        axes.plot([spread.min, spread.max], [place, place], color=look["color"], linewidth=1.5)
        axes.plot(spread.median, place, linestyle="none", markersize=5, **look)
        axes.annotate(
            f"{spread.median:.2f}",
            (spread.max, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},  # over the line at 1
        )
    axes.set_xlabel(label)
    axes.margins(x=0.15)
    axes.set_xlim(left=0)
    axes.grid(axis="y", color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)


def _save(figure: Figure, path: Path) -> None:
    # No date, so that equal measurements give equal files.
    figure.savefig(path.with_name(f"{path.name}.png"), dpi=200)
    figure.savefig(path.with_name(f"{path.name}.svg"), metadata={"Date": None})
