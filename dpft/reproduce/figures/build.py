"""From what a figure is made from to what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from dpft.config.errors import ConfigError
from dpft.reproduce.figures import benchmarks, computed, heat, private, scores
from dpft.reproduce.figures.catalog import Figure, Kind
from dpft.reproduce.figures.content import Built, Content
from dpft.reproduce.figures.inputs import Inputs
from dpft.reproduce.tables.marks import Mark

BUILDERS: Mapping[str, Callable[[Figure, Inputs], Built]] = MappingProxyType(
    {
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
    }
)


def build(figure: Figure, inputs: Inputs) -> Content:
    """What the figure shows.

    Raises:
        ConfigError: if it cannot be made, or what it needs is missing.
    """
    if figure.build is None:
        raise ConfigError(f"{figure.name} cannot be made: {figure.why}")
    built = BUILDERS[figure.build](figure, inputs)
    marks = {letter for panel in built.panels for point in panel.points for letter in point.marks}
    meanings = [f"{mark.letter}: {mark.meaning}" for mark in Mark if mark.letter in marks]
    caption = [*built.notes, *_settings(inputs)]
    if meanings:
        caption.append(f"Letters: {'; '.join(sorted(meanings))}.")
    return Content(
        *(figure.name, figure.title, figure.source),
        panels=tuple(built.panels),
        caption=tuple(dict.fromkeys(caption)),
        columns=built.columns,
        private=figure.kind is Kind.PRIVATE,
    )


def _settings(inputs: Inputs) -> Iterator[str]:
    """What the tables must be read with: choices of lists, and what stands in for what."""
    for table in inputs.tables:
        source = table.printed.source
        if table.is_list:
            yield from (f"{source}: {choice}" for choice in table.printed.choices)
        if inputs.scale == "laptop" and table.printed.laptop is not None:
            yield f"LAPTOP SCALE ({source}): {table.printed.laptop.says}"
