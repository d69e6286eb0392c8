"""How figures look: colours for the colour-blind, and markers and lines that survive grey print."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's palette without its yellow, which is too light on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES: tuple[Any, ...] = (
    *("solid", "dashed", "dashdot", "dotted"),
    *((0, (6, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2))),
)
# Light to dark is low to high, in colour and in grey.
MAP = "cividis"
DPI = 160

RC: dict[Any, Any] = {
    **{"font.size": 9, "axes.titlesize": 9, "figure.titlesize": 10, "legend.fontsize": 8},
    **{"axes.spines.top": False, "axes.spines.right": False},
    **{"axes.grid": True, "grid.color": "0.92", "grid.linewidth": 0.8, "axes.axisbelow": True},
    **{"lines.linewidth": 1.5, "lines.markersize": 4.5},
    # Equal numbers give equal files, and text in them can be searched.
    **{"svg.hashsalt": "dpft", "svg.fonttype": "none"},
}
