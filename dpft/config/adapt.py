"""Which parameters are trained, or what is put beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dpft.config.checks import Count, Fraction, one_of
from dpft.config.errors import ConfigError

# Each adaptation with the settings that it must have, and those that it may have.
_ADAPTATIONS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "full": ((), ()),
    "scratch": ((), ()),
    "linear": ((), ()),
    "bias": ((), ()),
    "attention": ((), ()),
    "top2": (("blocks",), ()),
    "lora": (("rank", "alpha"), ("dropout", "targets")),
    "prefix": (("length",), ("hidden",)),
    "rgp": (("rank", "follow"), ()),
}
ADAPTATIONS = tuple(_ADAPTATIONS)


@dataclass(frozen=True)
class Adapt:
    """``conf/adapt``: which parameters are trained, or what is put beside them.

    Attributes:
        name: one of `ADAPTATIONS`.
        blocks: ``top2``: how many of the last transformer blocks.
        rank: ``lora``, ``rgp``: of an update, or of the carriers.
        alpha: ``lora``: the update is scaled by ``alpha / rank``.
        dropout: ``lora``: of the adapters' inputs.
        targets: ``lora``: names of the layers to adapt; None: queries and values, see
            `dpft.models.lora.targets_of`.
        length: ``prefix``: positions that it takes.
        hidden: ``prefix``: width of the network that it comes out of; None: no network.
        follow: ``rgp``: what the carriers follow, the ``update`` since the start (Yu et al. 2021c)
            or the ``weight`` (the code they published).
    """

    name: str
    blocks: Count | None = None
    rank: Count | None = None
    alpha: Count | None = None
    dropout: Fraction | None = None
    targets: tuple[str, ...] | None = None
    length: Count | None = None
    hidden: Count | None = None
    follow: Literal["update", "weight"] | None = None

    def __post_init__(self) -> None:
        one_of("adapt.name", self.name, ADAPTATIONS)
        needs, may_have = _ADAPTATIONS[self.name]
        takes = (*needs, *may_have)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in needs and value is None:
                raise ConfigError(
                    f"adapt.{field.name} is not set; type adapt={self.name}, whose file sets it"
                )
            if field.name not in ("name", *takes) and value is not None:
                raise ConfigError(
                    f"adapt.{field.name} is {value}, which has no effect on adapt={self.name}; "
                    f"expected of this kind: {', '.join(f'adapt.{t}' for t in takes) or 'nothing'}"
                )
