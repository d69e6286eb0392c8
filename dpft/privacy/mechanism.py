"""The frozen statement of what a run does to the data, made before training begins.

Everything asks the mechanism: the sampler its rate, the clipper its thresholds, the noise its
standard deviation, the accountants their event, the model card its text. What the accountants see
is therefore what ran.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from dpft.privacy import accounting, groups
from dpft.privacy.clipping import Clipper
from dpft.privacy.noise import GaussianNoise
from dpft.privacy.sampling import PoissonSampler, Sampler, ShuffleSampler

SAMPLERS: dict[str, type[PoissonSampler] | type[ShuffleSampler]] = {
    "poisson": PoissonSampler,
    "shuffle": ShuffleSampler,
}


@dataclass(frozen=True)
class Mechanism:
    """``steps`` Poisson-subsampled Gaussian mechanisms on one dataset.

    Neighbouring datasets differ by adding or removing one record.

    Attributes:
        dataset_size: ``N``, treated as public.
        batch_size: expected logical batch size ``B``; the sampling rate is ``B/N``.
        steps: number of noisy steps.
        noise_multiplier: ``sigma``, noise standard deviation over sensitivity; 0 means no noise
            and no guarantee.
        thresholds: clipping threshold of each group, ``C_k``; empty means no clipping.
        delta: failure probability of the guarantee.
        sampling: ``poisson``, or ``shuffle`` (accounted as Poisson, and labelled so).
        target_epsilon: the budget that ``noise_multiplier`` was calibrated to, if it was.
        accountant: which accountant calibrated it.
    """

    dataset_size: int
    batch_size: int
    steps: int
    noise_multiplier: float
    thresholds: tuple[float, ...]
    delta: float
    sampling: str = "poisson"
    target_epsilon: float | None = None
    accountant: str | None = None

    def __post_init__(self) -> None:
        if self.dataset_size < 1:
            raise ValueError("the training set is empty; expected at least one record")
        if not 1 <= self.batch_size <= self.dataset_size:
            raise ValueError(
                f"optim.batch_size is {self.batch_size} for {self.dataset_size} training records; "
                f"expected between 1 and {self.dataset_size}"
            )
        if self.steps < 0:
            raise ValueError(f"steps is {self.steps}; expected 0 or more")
        if not 0 < self.delta < 1:
            raise ValueError(f"privacy.delta is {self.delta}; expected between 0 and 1")
        if self.noise_multiplier < 0 or math.isnan(self.noise_multiplier):
            raise ValueError(f"noise multiplier is {self.noise_multiplier}; expected 0 or more")
        if self.sampling not in SAMPLERS:
            raise ValueError(
                f"sampling is {self.sampling!r}; expected one of {', '.join(SAMPLERS)}"
            )
        if self.noise_multiplier > 0 and not self.thresholds:
            raise ValueError(
                "noise without clipping protects nobody: the sensitivity is unbounded; expected a "
                "clipping threshold, for instance clip.threshold=0.1"
            )

    @classmethod
    def calibrate(
        cls,
        *,
        dataset_size: int,
        batch_size: int,
        steps: int,
        thresholds: tuple[float, ...],
        delta: float,
        target_epsilon: float,
        accountant: str = "rdp",
        sampling: str = "poisson",
    ) -> Mechanism:
        """The mechanism with the least noise that spends at most ``target_epsilon``.

        Raises:
            ValueError: for a budget that is not positive or cannot be reached.
        """
        unscaled = cls(dataset_size, batch_size, steps, 0.0, thresholds, delta, sampling)
        sigma = accounting.calibrate_noise(
            target_epsilon=target_epsilon,
            delta=delta,
            sampling_rate=unscaled.sampling_rate,
            steps=steps,
            accountant=accountant,
        )
        return cls(
            dataset_size,
            batch_size,
            steps,
            sigma,
            thresholds,
            delta,
            sampling,
            target_epsilon,
            accountant,
        )

    @property
    def private(self) -> bool:
        """Whether any guarantee holds: noise is added, or nothing is released at all."""
        return self.noise_multiplier > 0 or self.steps == 0

    @property
    def sampling_rate(self) -> float:
        return self.batch_size / self.dataset_size

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of one step's sum of clipped gradients."""
        return groups.sensitivity(self.thresholds) if self.thresholds else math.inf

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum."""
        return self.noise_multiplier * self.sensitivity if self.noise_multiplier > 0 else 0.0

    def epsilons(self, steps: int | None = None) -> dict[str, Any]:
        """Epsilon at `delta` by every accountant after ``steps`` (default: all) steps."""
        return accounting.all_epsilons(
            sampling_rate=self.sampling_rate,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps if steps is None else steps,
            delta=self.delta,
        )

    @cached_property
    def _curve(self) -> accounting.RDPCurve:
        return accounting.rdp_curve(
            sampling_rate=self.sampling_rate, noise_multiplier=self.noise_multiplier
        )

    def epsilon_after(self, steps: int) -> float:
        """RDP epsilon after ``steps`` steps; cheap enough to be called at every step."""
        return self._curve.epsilon(steps, self.delta) if self.noise_multiplier > 0 else math.inf

    def sampler(self, key: bytes) -> Sampler:
        """The sampler that this mechanism is accounted for (or labelled, for ``shuffle``)."""
        return SAMPLERS[self.sampling](self, key)

    def noise(self, key: bytes, clipper: Clipper) -> GaussianNoise:
        """The noise for ``clipper``'s sums.

        Raises:
            ValueError: if the clipper's sensitivity is not the one this mechanism accounts for.
        """
        if clipper.thresholds != self.thresholds:
            raise ValueError(
                f"the clipper's thresholds {clipper.thresholds} differ from the mechanism's "
                f"{self.thresholds}; expected them equal, since noise is scaled to them"
            )
        return GaussianNoise(self, key)

    def to_dict(self) -> dict[str, Any]:
        """All fields and what follows from them, for ledger and record."""
        fields = asdict(self) | {"thresholds": list(self.thresholds)}
        derived = {
            "private": self.private,
            "sampling_rate": self.sampling_rate,
            "sensitivity": self.sensitivity if self.thresholds else None,
            "noise_std": self.noise_std,
            "neighbouring": "add or remove one record",
        }
        return fields | derived
