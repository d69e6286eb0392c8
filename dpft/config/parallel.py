"""How processes share model and batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpft.config.checks import Count
from dpft.config.errors import ConfigError


@dataclass(frozen=True)
class Parallel:
    """``conf/parallel``: how the processes that torchrun started share model and batch.

    Attributes:
        name: ``data``: a copy of the model each; ``fsdp``: a part of every parameter each;
            ``pipeline``: some of its blocks each.
        shards: ``fsdp``: ranks that one copy of the model is spread over; None: all.
        length: ``pipeline``: ranks of one; None: all.
        schedule: ``pipeline``: in which order the stages take microbatches; None: ``1f1b``.
        microbatches: ``pipeline``: how many a schedule sends at a time; None: four for each rank.
    """

    name: Literal["data", "fsdp", "pipeline"] = "data"
    shards: Count | None = None
    length: Count | None = None
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"] | None = None
    microbatches: Count | None = None

    def __post_init__(self) -> None:
        for key, of in _OF_LAYOUT.items():
            if self.name != of and (value := getattr(self, key)) is not None:
                raise ConfigError(
                    f"parallel.{key} is {value}, which has no effect on parallel={self.name}; "
                    f"type parallel={of}"
                )


_OF_LAYOUT = {
    "shards": "fsdp",
    "length": "pipeline",
    "schedule": "pipeline",
    "microbatches": "pipeline",
}
