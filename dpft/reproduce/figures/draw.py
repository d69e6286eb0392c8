"""Content as a matplotlib figure and as files: panels in a grid, legend beside, caption below."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter

from dpft.reproduce.figures.catalog import Figure as Entry
from dpft.reproduce.figures.content import Axis, Content, FigurePoint, Heat, Origin, Panel, Series
from dpft.runs.atomic import write_atomic

# Okabe and Ito's palette without its yellow, which is too light on white. It, and the brightness
# of the map, survive colour-blindness; markers and lines survive grey print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES: tuple[Any, ...] = (
    *("solid", "dashed", "dashdot", "dotted"),
    *((0, (6, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2))),
)
MAP = "cividis"
RC: dict[Any, Any] = {
    **{"font.size": 9, "axes.titlesize": 9, "figure.titlesize": 10, "legend.fontsize": 8},
    **{"axes.spines.top": False, "axes.spines.right": False},
    **{"axes.grid": True, "grid.color": "0.92", "grid.linewidth": 0.8, "axes.axisbelow": True},
    **{"lines.linewidth": 1.5, "lines.markersize": 4.5},
    # Equal numbers give equal files, and text in them can be searched.
    **{"svg.hashsalt": "dpft", "svg.fonttype": "none"},
}
DPI = 160
_LETTERS_UP = 34
# Inches of a panel, the legend and a line of the caption; letters of the caption's size in an inch.
_WIDTH, _HEIGHT, _LEGEND, _CAPTION_LINE, _PER_INCH = 3.7, 3.0, 2.1, 0.15, 18


def save(about: Entry, content: Content, folder: Path) -> list[Path]:
    """Write ``NAME.png``, ``NAME.svg`` and ``NAME.csv``; equal content gives equal files.

    Returns:
        The three paths. Of a private figure only the owner can read them.
    """
    matplotlib.use("Agg")  # the figure is never shown, and a machine may have no display
    folder.mkdir(parents=True, exist_ok=True)
    mode = 0o600 if about.private else 0o644
    png, svg, csv = (folder / f"{about.stem}.{suffix}" for suffix in ("png", "svg", "csv"))
    with matplotlib.rc_context(RC):
        figure = draw(about, content)
        for path, metadata in ((png, {"Software": "dpft"}), (svg, {"Date": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=path.suffix[1:], dpi=DPI, metadata=metadata)
            write_atomic(path, buffer.getvalue(), mode=mode)
    write_atomic(csv, content.csv, mode=mode)
    return [png, svg, csv]


def draw(about: Entry, content: Content) -> Figure:
    """The figure; the caller sets the style `RC` around it."""
    panels = content.panels
    columns = min(len(panels), content.columns)
    lines = math.ceil(len(panels) / columns)
    # Printed and ours of one thing have one label and look alike.
    looks: dict[str, int] = {}
    legend: dict[str, Series] = {}
    for series in (one for p in panels if isinstance(p, Panel) for one in p.series):
        looks.setdefault(series.label, len(looks))
        legend.setdefault(series.legend, series)
    # One series alone still has to say whether it is the paper's.
    keyed = len(legend) > 1 or any(one.legend_origin for one in legend.values())
    width = columns * max(_WIDTH, *map(_heat_width, panels)) + _LEGEND * keyed
    wrapped = [
        line for text in content.caption for line in textwrap.wrap(text, int(width * _PER_INCH))
    ]
    height = sum(max(map(_height, panels[i * columns : (i + 1) * columns])) for i in range(lines))
    height += 0.5 + _CAPTION_LINE * max(1, len(wrapped))
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes, panel in zip(grid, panels, strict=False):
        if isinstance(panel, Heat):
            _heat(figure, axes, panel)
        else:
            _panel(axes, panel, looks)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(f"{about.title}\n{about.source}")
    if keyed:
        handles = [
            Line2D([], [], label=textwrap.fill(text, 28), **_look(one, looks[one.label]))
            for text, one in legend.items()
        ]
        figure.legend(handles=handles, loc="outside right center", frameon=False)
    figure.supxlabel("\n".join(wrapped), fontsize=7, ha="left", x=0.01)
    return figure


def _heat_width(panel: Panel | Heat) -> float:
    # A cell that shows its number must be wide enough for it.
    return 1.4 + 0.5 * len(panel.cells[0]) if isinstance(panel, Heat) and panel.show_numbers else 0


def _height(panel: Panel | Heat) -> float:
    if isinstance(panel, Heat):
        return max(_HEIGHT, 0.9 + _lines(panel) * len(panel.cells))
    return _HEIGHT + (0.6 if _tilted(panel.x) else 0.0)


def _lines(panel: Heat) -> float:
    """Inches of a cell's lines: its number, its deviation, its marks."""
    spread = any(point.error is not None for point in panel.points)
    return (0.34 + 0.14 * spread) * panel.show_numbers


def _tilted(axis: Axis) -> bool:
    return bool(axis.names) and max(map(len, axis.names)) * len(axis.names) > 34


def _look(series: Series, key: int) -> dict[str, Any]:
    """Colour, line, marker: what is printed is hollow and dashed, computed lines have no marker."""
    look: dict[str, Any] = {"color": COLOURS[key % len(COLOURS)], "linestyle": "none"}
    if series.look != "points":
        look["linestyle"] = LINES[key % len(LINES)]
    computed_line = series.look == "line" and series.origin is Origin.COMPUTED
    if series.look not in ("line", "points") or computed_line:
        return look
    look["marker"] = MARKERS[key % len(MARKERS)]
    if series.origin is Origin.PRINTED:
        look["markerfacecolor"] = "white"
        if series.look == "line":
            look["linestyle"] = (0, (2, 2))
    return look


def _panel(axes: Axes, panel: Panel, looks: Mapping[str, int]) -> None:
    # At one place all series would lie on each other: there each has a place beside it.
    apart = len(panel.x.names) == 1 and len(panel.series) > 1
    for k, series in enumerate(panel.series):
        look = _look(series, looks[series.label])
        shift = 0.7 * (k / (len(panel.series) - 1) - 0.5) if apart else 0.0
        xs, ys = [p.x + shift for p in series.points], [p.y for p in series.points]
        if series.look == "level":
            axes.axhline(ys[0], **look)
            _mark_level(axes, series.points[0])
        elif series.look == "verticals":
            for x in xs:
                axes.axvline(x, linewidth=1, **look)
        elif series.look == "steps":
            axes.plot(xs, ys, drawstyle="steps-post", **look)
        else:
            axes.plot(xs, ys, **look)
            if apart:
                _value(axes, xs[0], ys[0])
            else:
                _annotate(axes, series, look["color"])
    axes.set_title(panel.title)
    longest = max((len(point.annotation) for point in panel.points), default=0)
    axes.margins(x=0.3 if longest > 8 else 0.08, y=0.1)
    _axis(axes, "x", panel.x)
    _axis(axes, "y", panel.y)


def _value(axes: Axes, x: float, y: float) -> None:
    beside: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 7}
    axes.annotate(f"{y:,.3g}", (x, y), (0, 6), **beside)


def _mark_level(axes: Axes, point: FigurePoint) -> None:
    """What is written beside a point, at the right end of a line without one."""
    where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "fontsize": 7}
    axes.annotate(point.annotation, (1, point.y), (0, 3), textcoords="offset points", **where)


def _annotate(axes: Axes, series: Series, colour: str) -> None:
    """Error bars, labels and marks."""
    known = [p for p in series.points if p.error is not None]
    if known:
        axes.errorbar(
            *([p.x for p in known], [p.y for p in known], [p.error or 0.0 for p in known]),
            linestyle="none",
            color=colour,
            capsize=2,
            elinewidth=1,
        )
    for place, point in enumerate(series.points):
        if point.annotation:
            # Above and below in turn, so that neighbours can be distinguished.
            offset = (4, -9 if place % 2 else 3)
            axes.annotate(
                *(point.annotation, (point.x, point.y), offset),
                textcoords="offset points",
                fontsize=7,
            )


def _axis(axes: Axes, which: str, axis: Axis) -> None:
    """Label, scale and ticks of the axis ``x`` or ``y``."""

    def set_(what: str, *args: Any, **more: Any) -> None:
        getattr(axes, f"set_{which}{what}")(*args, **more)

    # Written upwards, a long label would leave its panel.
    wide = 1000 if which == "x" else _LETTERS_UP
    set_("label", textwrap.fill(axis.label, wide, break_on_hyphens=False))
    if axis.scale != "linear":
        set_("scale", "log", base=2 if axis.scale == "log2" else 10)
    low, high = getattr(axes, f"get_{which}lim")()
    if axis.scale == "log" and low > 1e-3 and high < 1e4:
        # 100 and 200 instead of powers.
        ticks = getattr(axes, f"{which}axis")
        ticks.set_major_formatter(LogFormatter())
        ticks.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.7)))
    if axis.names:
        tilt = {"rotation": 30, "ha": "right"} if which == "x" and _tilted(axis) else {}
        set_("ticks", range(len(axis.names)), axis.names, **tilt)
        if which == "x":
            set_("lim", -0.5, len(axis.names) - 0.5)
    if axis.from_zero:
        set_("lim", 0)


def _heat(figure: Figure, axes: Axes, heat: Heat) -> None:
    grid = [[math.nan if p is None else p.y for p in row] for row in heat.cells]
    low, high = heat.limits or (None, None)
    image = axes.imshow(grid, cmap=MAP, aspect="auto", interpolation="none", vmin=low, vmax=high)
    figure.colorbar(image, ax=axes, label=heat.label)
    axes.grid(visible=False)
    axes.set_title(heat.title)
    axes.set(xlabel=heat.x.label, ylabel=heat.y.label)
    if heat.x.names:
        axes.set_xticks(range(len(heat.x.names)), heat.x.names)
    if heat.y.names:
        axes.set_yticks(range(len(heat.y.names)), heat.y.names)
    if heat.show_numbers:
        _numbers(axes, heat, image.get_clim())
    for x in heat.lines[0]:
        axes.axvline(x, color="#D55E00", linewidth=2)
    for y in heat.lines[1]:
        axes.axhline(y, color="#D55E00", linewidth=2)


def _numbers(axes: Axes, heat: Heat, limits: tuple[Any, Any]) -> None:
    """The numbers of a map whose colours go from one limit to the other."""
    # Of this map, what lies above is lighter than the grey at which black reads as well as white.
    middle = 0.45 * limits[0] + 0.55 * limits[1]
    centred: dict[str, Any] = {"ha": "center", "va": "center"}
    for i, row in enumerate(heat.cells):
        for j, point in enumerate(row):
            if point is None:
                axes.text(j, i, "·", color="0.5", **centred)
                continue
            spread = "" if point.error is None else f"±{point.error:.{heat.decimals}f}"
            text = "\n".join(filter(None, (f"{point.y:.{heat.decimals}f}", spread, point.marks)))
            color = "black" if point.y > middle else "white"
            axes.text(j, i, text, fontsize=7, color=color, **centred)
