"""Content as a matplotlib figure: panels in a grid, legend beside them, caption below."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogFormatter

from dpft.reproduce.figures.content import Axis, Content, Heat, Origin, Panel, Series
from dpft.reproduce.figures.style import COLOURS, LINES, MAP, MARKERS

_WIDTH, _HEIGHT, _LEGEND = 3.7, 3.0, 2.1
# Letters of the caption's size in an inch.
_PER_INCH = 18
_CAPTION_LINE = 0.15


def draw(content: Content) -> Figure:
    """The figure; the caller sets the style (`dpft.reproduce.figures.style.RC`) around it."""
    count = len(content.panels)
    columns = min(count, content.columns or 3)
    lines = math.ceil(count / columns)
    keys = _keys(content.panels)
    legend = len(_legends(content.panels)) > 1
    width = columns * _panel_width(content.panels) + (_LEGEND if legend else 0)
    caption = "\n".join(
        line for text in content.caption for line in textwrap.wrap(text, int(width * _PER_INCH))
    )
    height = sum(
        max(_panel_height(p) for p in content.panels[i * columns : (i + 1) * columns])
        for i in range(lines)
    )
    height += 0.5 + _CAPTION_LINE * (caption.count("\n") + 1)
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for place, panel in enumerate(content.panels):
        axes = grid[place // columns][place % columns]
        if isinstance(panel, Heat):
            _heat(figure, axes, panel)
        else:
            _panel(axes, panel, keys)
    for place in range(count, lines * columns):
        grid[place // columns][place % columns].set_axis_off()
    figure.suptitle(f"{content.title}\n{content.source}")
    if legend:
        handles = _handles(content.panels, keys)
        figure.legend(handles=handles, loc="outside right center", frameon=False)
    figure.supxlabel(caption, fontsize=7, ha="left", x=0.01)
    return figure


def _panel_width(panels: Sequence[Panel | Heat]) -> float:
    # A cell that shows its number must be wide enough for it.
    cells = max((len(p.values[0]) for p in panels if isinstance(p, Heat) and p.numbers), default=0)
    return max(_WIDTH, 1.4 + 0.5 * cells)


def _panel_height(panel: Panel | Heat) -> float:
    if isinstance(panel, Heat):
        return max(_HEIGHT, 0.9 + 0.34 * len(panel.values) * panel.numbers)
    return _HEIGHT + (0.6 if _tilted(panel.x) else 0.0)


def _tilted(axis: Axis) -> bool:
    return bool(axis.names) and max(map(len, axis.names)) * len(axis.names) > 34


def _keys(panels: Sequence[Panel | Heat]) -> dict[str, int]:
    """A place in the palette for each label: printed and ours of one thing look alike."""
    found: dict[str, int] = {}
    for panel in panels:
        for series in panel.series if isinstance(panel, Panel) else ():
            found.setdefault(series.label, len(found))
    return found


def _legends(panels: Sequence[Panel | Heat]) -> dict[str, Series]:
    found: dict[str, Series] = {}
    for panel in panels:
        for series in panel.series if isinstance(panel, Panel) else ():
            found.setdefault(series.legend, series)
    return found


def _handles(panels: Sequence[Panel | Heat], keys: dict[str, int]) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []
    for text, series in _legends(panels).items():
        label = "\n".join(textwrap.wrap(text, 28))
        look = _look(series, keys[series.label])
        handles.append(Line2D([], [], label=label, **look))
    return handles


def _look(series: Series, key: int) -> dict[str, Any]:
    """Colour, line, marker: what is printed is hollow and dashed, computed lines have no marker."""
    look: dict[str, Any] = {"color": COLOURS[key % len(COLOURS)], "linestyle": "none"}
    if series.look in ("level", "verticals", "steps"):
        return look | {"linestyle": LINES[key % len(LINES)]}
    if series.look == "line":
        look["linestyle"] = LINES[key % len(LINES)]
    if series.origin is Origin.COMPUTED and series.look == "line":
        return look
    look["marker"] = MARKERS[key % len(MARKERS)]
    if series.origin is Origin.PRINTED:
        look |= {"markerfacecolor": "white"}
        if series.look == "line":
            look["linestyle"] = (0, (2, 2))
    return look


def _panel(axes: Axes, panel: Panel, keys: dict[str, int]) -> None:
    for series in panel.series:
        look = _look(series, keys[series.label])
        xs, ys = [p.x for p in series.points], [p.y for p in series.points]
        if series.look == "level":
            axes.axhline(ys[0], **look)
        elif series.look == "verticals":
            for x in xs:
                axes.axvline(x, linewidth=1, **look)
        elif series.look == "steps":
            axes.plot(xs, ys, drawstyle="steps-post", **look)
        else:
            axes.plot(xs, ys, **look)
            _errors(axes, series, str(look["color"]))
        for place, point in enumerate(series.points):
            if point.beside and series.look in ("line", "points"):
                axes.annotate(
                    point.beside,
                    (point.x, point.y),
                    xytext=(4, -9 if place % 2 else 3),  # so that neighbours can be told apart
                    textcoords="offset points",
                    fontsize=7,
                )
    axes.set_title(panel.title)
    beside = max((len(p.beside) for series in panel.series for p in series.points), default=0)
    axes.margins(x=0.3 if beside > 8 else 0.08, y=0.1)
    _axis(axes, "x", panel.x)
    _axis(axes, "y", panel.y)


def _errors(axes: Axes, series: Series, colour: str) -> None:
    known = [p for p in series.points if p.error is not None]
    if known:
        axes.errorbar(
            [p.x for p in known],
            [p.y for p in known],
            yerr=[p.error or 0.0 for p in known],
            linestyle="none",
            color=colour,
            capsize=2,
            elinewidth=1,
        )


def _axis(axes: Axes, which: str, axis: Axis) -> None:
    x = which == "x"
    (axes.set_xlabel if x else axes.set_ylabel)(axis.label)
    scale = axes.set_xscale if x else axes.set_yscale
    if axis.scale == "log":
        scale("log")
        _plain_numbers(axes, which)
    elif axis.scale == "log2":
        scale("log", base=2)
    if axis.names:
        ticks = range(len(axis.names))
        if x:
            angle: dict[str, Any] = {"rotation": 30, "ha": "right"} if _tilted(axis) else {}
            axes.set_xticks(ticks, axis.names, **angle)
            axes.set_xlim(-0.5, len(axis.names) - 0.5)
        else:
            axes.set_yticks(ticks, axis.names)
    if axis.from_zero:
        if x:
            axes.set_xlim(left=0)
        else:
            axes.set_ylim(bottom=0)


def _plain_numbers(axes: Axes, which: str) -> None:
    """100 and 200 instead of powers, where numbers are neither tiny nor huge."""
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    if low > 1e-3 and high < 1e4:
        place = axes.xaxis if which == "x" else axes.yaxis
        place.set_major_formatter(LogFormatter())
        place.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.7)))


def _heat(figure: Figure, axes: Axes, heat: Heat) -> None:
    grid = [[math.nan if v is None else v for v in row] for row in heat.values]
    low, high = heat.limits or (None, None)
    image = axes.imshow(grid, cmap=MAP, aspect="auto", interpolation="none", vmin=low, vmax=high)
    figure.colorbar(image, ax=axes, label=heat.label)
    axes.grid(visible=False)
    axes.set_title(heat.title)
    axes.set_xlabel(heat.x.label)
    axes.set_ylabel(heat.y.label)
    if heat.x.names:
        axes.set_xticks(range(len(heat.x.names)), heat.x.names)
    if heat.y.names:
        axes.set_yticks(range(len(heat.y.names)), heat.y.names)
    known = [v for row in heat.values for v in row if v is not None]
    # Of this map, what lies above is lighter than the grey at which black reads as well as white.
    middle = 0.45 * min(known) + 0.55 * max(known) if known else 0.0
    for i, row in enumerate(heat.values if heat.numbers else ()):
        for j, value in enumerate(row):
            if value is None:
                axes.text(j, i, "·", ha="center", va="center", color="0.5")
                continue
            letters = f"\n{heat.marks[i][j]}" if heat.marks and heat.marks[i][j] else ""
            axes.text(
                *(j, i, f"{value:.{heat.decimals}f}{letters}"),
                ha="center",
                va="center",
                fontsize=7,
                color="black" if value > middle else "white",
            )
    for x in heat.lines[0]:
        axes.axvline(x, color="#D55E00", linewidth=2)
    for y in heat.lines[1]:
        axes.axhline(y, color="#D55E00", linewidth=2)
