"""From what a figure is made of to its content, and to its files: PNG, SVG and CSV."""

import io
import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpft.config.errors import ConfigError
from dpft.reproduce.figures import computed, measured, private
from dpft.reproduce.figures.catalog import Figure as Entry
from dpft.reproduce.figures.catalog import Inputs
from dpft.reproduce.figures.content import Content, Heat, Origin, Panel, Series
from dpft.reproduce.tables.verdicts import Mark
from dpft.runs.atomic import write_atomic

# Okabe and Ito's palette without its yellow, which is too light on white. It, and the brightness
# of the map, survive colour-blindness; markers survive grey print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("solid", "dashed", "dashdot", "dotted")
RC: dict[Any, Any] = {
    **{"font.size": 9, "axes.titlesize": 9, "figure.titlesize": 10, "legend.fontsize": 8},
    **{"axes.spines.top": False, "axes.spines.right": False},
    **{"axes.grid": True, "grid.color": "0.92", "grid.linewidth": 0.8, "axes.axisbelow": True},
    **{"lines.linewidth": 1.5, "lines.markersize": 4.5},
    # Equal numbers give equal files, and text in them can be searched.
    **{"svg.hashsalt": "dpft", "svg.fonttype": "none"},
}
DPI = 160
# Inches of a panel, the legend and a line of the caption; letters of the caption's size in an inch.
_WIDTH, _HEIGHT, _LEGEND, _CAPTION_LINE, _PER_INCH = 3.7, 3.0, 2.1, 0.15, 18
# Letters of an axis' names, or of a label that is written upwards, that fit next to each other.
_LETTERS = 34

BUILDERS: Mapping[str, Callable[[Entry, Inputs], Content]] = {
    builder.__name__: builder
    for builder in (
        *(measured.scores, measured.heat_maps),
        *(measured.number_of_groups, computed.effective_noise),
        *(computed.noise_by_rate, computed.memory_profile, private.norms_by_layer),
        *(private.histograms, private.signal_to_noise),
    )
}


def build(figure: Entry, inputs: Inputs) -> Content:
    """Return what the figure shows."""
    if figure.build is None:
        raise ConfigError(f"{figure.name} cannot be made: {figure.why}")
    content = BUILDERS[figure.build](figure, inputs)
    caption = [*content.caption]
    for table in inputs.tables:
        source, laptop = table.printed.source, table.printed.laptop
        if table.is_list:
            caption += [f"{source}: {choice}" for choice in table.printed.choices]
        if inputs.scale == "laptop" and laptop is not None:
            caption.append(f"LAPTOP SCALE ({source}): {laptop.says}")
    drawn = [point for panel in content.panels for point in panel.points]
    if inputs.tables and any(one.error is not None for one in drawn):
        caption.append("Bars, and numbers behind ±: one standard deviation over seeds.")
    letters = {letter for one in drawn for letter in one.marks}
    meanings = sorted(f"{mark.letter}: {mark.meaning}" for mark in Mark if mark.letter in letters)
    caption += [f"Letters: {'; '.join(meanings)}."] if meanings else []
    return replace(content, caption=tuple(dict.fromkeys(caption)))


def save(about: Entry, content: Content, folder: Path) -> list[Path]:
    """Write ``NAME.png``, ``.svg`` and ``.csv``, a private figure's for the owner alone to read."""
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
    """Return the figure; the caller sets the style `RC` around it."""
    panels = content.panels
    columns = min(len(panels), content.columns)
    # Printed numbers and ours of one label have one colour and marker.
    keys: dict[str, int] = {}
    legend: dict[str, Series] = {}
    for series in (one for p in panels if isinstance(p, Panel) for one in p.series):
        keys.setdefault(series.label, len(keys))
        legend.setdefault(series.legend, series)
    sizes = [(_WIDTH, _HEIGHT)]
    for panel in panels:  # cells of a map are as large as the numbers in them
        if isinstance(panel, Heat) and panel.show_numbers:
            line = 0.34 + 0.14 * any(point.error is not None for point in panel.points)
            sizes.append((1.4 + 0.5 * len(panel.cells[0]), 0.9 + line * len(panel.cells)))
    lines, (across, down) = math.ceil(len(panels) / columns), map(max, zip(*sizes, strict=True))
    width = columns * across + _LEGEND * bool(legend)
    per_line = int(width * _PER_INCH)
    wrapped = [line for text in content.caption for line in textwrap.wrap(text, per_line)]
    height = lines * down + 0.5 + _CAPTION_LINE * max(1, len(wrapped))
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes, panel in zip(grid, panels, strict=False):
        axes.set_title(panel.title)
        if isinstance(panel, Heat):
            _draw_heat(figure, axes, panel)
        else:
            _draw_panel(axes, panel, keys)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(f"{about.title}\n{about.source}")
    if legend:
        handles = [
            Line2D([], [], label=textwrap.fill(text, 28), **_look(one, keys[one.label]))
            for text, one in legend.items()
        ]
        figure.legend(handles=handles, loc="outside right center", frameon=False)
    figure.supxlabel("\n".join(wrapped), fontsize=7, ha="left", x=0.01)
    return figure


def _look(series: Series, key: int) -> dict[str, Any]:
    """Return colour, line and marker: printed is hollow, computed lines have no marker."""
    look: dict[str, Any] = {"color": COLOURS[key % len(COLOURS)]}
    look["linestyle"] = "none" if series.look == "points" else LINES[key % len(LINES)]
    if series.look == "points" or (series.look == "line" and series.origin is not Origin.COMPUTED):
        look["marker"] = MARKERS[key % len(MARKERS)]
        if series.origin is Origin.PRINTED:
            look["markerfacecolor"] = "white"
            look["linestyle"] = "none" if series.look == "points" else (0, (2, 2))
    return look


def _draw_panel(axes: Axes, panel: Panel, keys: Mapping[str, int]) -> None:
    small: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7}
    for series in panel.series:
        look = _look(series, keys[series.label])
        xs, ys = [p.x for p in series.points], [p.y for p in series.points]
        texts = [f"{p.label} {p.marks}".strip() for p in series.points]
        if series.look == "level":
            axes.axhline(ys[0], **look)
            where: Any = ("axes fraction", "data")
            axes.annotate(texts[0], (1, ys[0]), (0, 3), xycoords=where, ha="right", **small)
        elif series.look == "verticals":
            for x in xs:
                axes.axvline(x, linewidth=1, **look)
        elif series.look == "steps":
            axes.plot(xs, ys, drawstyle="steps-post", **look)
        else:
            axes.plot(xs, ys, **look)
            errors = [p.error or 0.0 for p in series.points]
            if any(errors):
                bars: dict[str, Any] = {"linestyle": "none", "capsize": 2, "elinewidth": 1}
                axes.errorbar(xs, ys, errors, color=look["color"], **bars)
            for place, text in enumerate(texts):
                # Above and below in turn, so that neighbours can be distinguished.
                axes.annotate(text, (xs[place], ys[place]), (4, -9 if place % 2 else 3), **small)
    axes.margins(x=0.1, y=0.1)
    # Written upwards, a long label would leave its panel.
    label = textwrap.fill(panel.y.label, _LETTERS, break_on_hyphens=False)
    axes.set(xlabel=panel.x.label, ylabel=label)
    for axis, set_scale in ((panel.x, axes.set_xscale), (panel.y, axes.set_yscale)):
        if axis.scale != "linear":
            set_scale("log", base=2 if axis.scale == "log2" else 10)
    if names := panel.x.names:
        wide = max(map(len, names)) * len(names) > _LETTERS
        tilt: dict[str, Any] = {"rotation": 30, "ha": "right"} if wide else {}
        axes.set_xticks(range(len(names)), names, **tilt)
        axes.set_xlim(-0.5, len(names) - 0.5)
    if panel.x.from_zero:
        axes.set_xlim(left=0)
    if panel.y.from_zero:
        axes.axhline(0, linewidth=0)  # the margin above is a share of the whole height
        axes.set_ylim(bottom=0)


def _draw_heat(figure: Figure, axes: Axes, heat: Heat) -> None:
    grid = [[math.nan if p is None else p.y for p in row] for row in heat.cells]
    low, high = heat.limits or (None, None)
    image = axes.imshow(
        grid, cmap="cividis", aspect="auto", interpolation="none", vmin=low, vmax=high
    )
    figure.colorbar(image, ax=axes, label=heat.label)
    axes.grid(visible=False)
    axes.set(xlabel=heat.x.label, ylabel=heat.y.label)
    for axis, set_ticks in ((heat.x, axes.set_xticks), (heat.y, axes.set_yticks)):
        if axis.names:
            set_ticks(range(len(axis.names)), axis.names)
    # Black reads as well as white on this grey of the map.
    bottom, top = image.get_clim()
    middle = 0.45 * (bottom or 0.0) + 0.55 * (top or 0.0)
    centred: dict[str, Any] = {"ha": "center", "va": "center"}
    for i, row in enumerate(heat.cells if heat.show_numbers else ()):
        for j, point in enumerate(row):
            if point is None:
                axes.text(j, i, "·", color="0.5", **centred)
                continue
            spread = "" if point.error is None else f"±{point.error:.{heat.decimals}f}"
            text = "\n".join(filter(None, (f"{point.y:.{heat.decimals}f}", spread, point.marks)))
            color = "black" if point.y > middle else "white"
            axes.text(j, i, text, fontsize=7, color=color, **centred)
