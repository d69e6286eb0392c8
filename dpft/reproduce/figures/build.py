"""From what a figure is made from to what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from dpft.config.errors import ConfigError
from dpft.reproduce.figures import benchmarks, computed, heat, private, scores
from dpft.reproduce.figures.catalog import Figure
from dpft.reproduce.figures.content import Content
from dpft.reproduce.figures.inputs import Inputs
from dpft.reproduce.tables.marks import Mark

BUILDERS: Mapping[str, Callable[[Figure, Inputs], Content]] = {
    "scores": scores.scores,
    "styles_side_by_side": scores.styles_side_by_side,
    "heat_maps": heat.heat_maps,
    "model_sizes": benchmarks.model_sizes,
    "number_of_groups": benchmarks.number_of_groups,
    "effective_noise": computed.effective_noise,
    "noise_by_rate": computed.noise_by_rate,
    "memory_profile": computed.memory_profile,
    "norms_by_layer": private.norms_by_layer,
    "histograms": private.histograms,
    "losses_by_time": private.losses_by_time,
    "signal_to_noise": private.signal_to_noise,
}


def build(figure: Figure, inputs: Inputs) -> Content:
    """What the figure shows.

    Raises:
        ConfigError: if it cannot be made, or what it needs is missing.
    """
    if figure.build is None:
        raise ConfigError(f"{figure.name} cannot be made: {figure.why}")
    content = BUILDERS[figure.build](figure, inputs)
    letters = {letter for panel in content.panels for one in panel.points for letter in one.marks}
    meanings = sorted(f"{mark.letter}: {mark.meaning}" for mark in Mark if mark.letter in letters)
    caption = [*content.caption, *_settings(inputs)]
    drawn = (point for panel in content.panels for point in panel.points)
    if inputs.tables and any(one.error is not None for one in drawn):
        caption.append("Bars, and numbers behind ±: one standard deviation over seeds.")
    caption += [f"Letters: {'; '.join(meanings)}."] if meanings else []
    return replace(content, caption=tuple(dict.fromkeys(caption)))


def _settings(inputs: Inputs) -> Iterator[str]:
    """What the tables must be read with: choices of lists, and what stands in for what."""
    for table in inputs.tables:
        source = table.printed.source
        if table.is_list:
            yield from (f"{source}: {choice}" for choice in table.printed.choices)
        if inputs.scale == "laptop" and table.printed.laptop is not None:
            yield f"LAPTOP SCALE ({source}): {table.printed.laptop.says}"
