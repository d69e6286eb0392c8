"""Mean ratings with their intervals, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from dpft.reproduce.study.design import REFERENCE
from dpft.reproduce.study.sheet import SCALE
from dpft.reproduce.study.statistics import RatingSummary

_STYLE: dict[Any, Any] = {
    **{"font.size": 9, "svg.hashsalt": "dpft"},
    **{"axes.spines.top": False, "axes.spines.right": False},
}


def plot(summaries: Sequence[RatingSummary], title: str, path: Path) -> list[Path]:
    """Points for means, thick lines for asymptotic intervals, thin ones for clustered intervals.

    Args:
        summaries: systems without a rating are left out.
        title: above the axes.
        path: of the files, without suffix.
    """
    rated = [(s, s.mean) for s in summaries if s.mean is not None]
    with rc_context(_STYLE):
        figure = Figure(figsize=(6, 1.5 + 0.35 * len(rated)), layout="constrained")
        axes = figure.subplots()
        for place, (one, mean) in enumerate(rated):
            human = one.system == REFERENCE
            color = "#b35900" if human else "#1f4e79"
            if one.clustered is not None:
                axes.plot(one.clustered, [place, place], color=color, linewidth=0.9)
            if one.interval is not None:
                axes.plot(one.interval, [place, place], color=color, linewidth=2.6)
            axes.plot(mean, place, linestyle="none", color=color, marker="s" if human else "o")
            axes.annotate(
                f"{mean:.2f}",
                (mean, place),
                xytext=(0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
        axes.set_yticks(range(len(rated)), [f"{one.system} (n={one.n})" for one, _ in rated])
        axes.set_ylim(len(rated) - 0.4, -0.7)
        axes.set_xlim(min(SCALE), max(SCALE))
        axes.set_xlabel("mean rating; 95% interval (thin: raters as clusters)")
        axes.grid(axis="y", color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
        figure.suptitle(title, fontsize=9)
        files = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
        figure.savefig(files[0], dpi=200)
        # No date, so that equal ratings give equal files.
        figure.savefig(files[1], metadata={"Date": None})
    return files
