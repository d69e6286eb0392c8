"""The privacy budget, and how it is spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dpft.config.checks import HUGE, Bounds, Count, Effect, Positive, Seed, Share
from dpft.config.errors import ConfigError
from dpft.privacy.spec import Accountant, Sampling

_BUDGET = ", for instance eps=3. For training without privacy type clip=none"


@dataclass(frozen=True)
class Privacy:
    """``conf/privacy``: the budget, and how it is spent.

    Attributes:
        epsilon: the budget; ``noise_multiplier`` takes its place.
        delta: None: `dpft.privacy.spec.default_delta`.
        accountant: which one calibrates the noise.
        noise_multiplier: ``sigma`` of all that a step releases.
        sampling: how records come into batches, see `dpft.privacy.sampling`.
        max_batch: ``truncated_poisson``: the size that every batch is cut or filled up to; None:
            `dpft.privacy.accounting.fitting_size`.
        noise_seed: a public seed in place of a secret key.
    """

    epsilon: Annotated[float, Bounds(above=0, most=HUGE, hint=_BUDGET)] | None = None
    delta: Share | None = None
    accountant: Accountant = "pld"
    noise_multiplier: Positive | None = None
    sampling: Sampling = "poisson"
    max_batch: Count | None = None
    noise_seed: Annotated[Seed | None, Effect.REPETITION] = None

    def __post_init__(self) -> None:
        if self.max_batch is not None and self.sampling != "truncated_poisson":
            raise ConfigError(
                f"privacy.max_batch is {self.max_batch}, which has no effect on "
                f"sampling={self.sampling}; type sampling=truncated_poisson, or leave it out"
            )
        if self.noise_multiplier is not None and self.noise_multiplier * HUGE < 1:
            raise ConfigError(
                f"privacy.noise_multiplier is {self.noise_multiplier}, which bounds no epsilon; "
                "expected more. For training without privacy type clip=none"
            )
