"""The frozen statement of what a run does to the data, made before training begins.

Everything asks the mechanism: the sampler its rate, the clipper its thresholds, the noise its
standard deviation, the accountants their event, the model card its text. What the accountants see
is therefore what ran.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dpft.privacy import accounting
from dpft.privacy.quantiles import Quantiles, split_noise, total_noise
from dpft.privacy.spec import ALLOCATIONS, SAMPLINGS, fitting_batch, sensitivity

if TYPE_CHECKING:
    from dpft.privacy.clipping.clipper import Clipper
    from dpft.privacy.noise import GaussianNoise
    from dpft.privacy.sampling import Sampler


@dataclass(frozen=True)
class Mechanism:
    """``steps`` Poisson-subsampled Gaussian mechanisms on one dataset.

    Neighbouring datasets differ by adding or removing one record. With adaptive thresholds each
    step also releases one noisy count per group; both come from one Poisson sample and are
    accounted for as one Gaussian mechanism of noise multiplier `total_noise_multiplier`.

    Attributes:
        dataset_size: ``N``, treated as public.
        batch_size: expected logical batch size ``B``; the sampling rate is ``B/N``.
        steps: number of noisy steps.
        noise_multiplier: ``sigma`` on the gradients (``sigma_new`` where thresholds adapt), noise
            standard deviation over sensitivity; 0 means no noise and no guarantee.
        thresholds: clipping threshold of each group, ``C_k``; empty means no clipping. Where
            thresholds adapt: the estimates that the first step begins with.
        delta: failure probability of the guarantee.
        sampling: ``poisson``, ``truncated_poisson`` (`dpft.privacy.accounting.rdp`), or
            ``shuffle`` (accounted as Poisson, and labelled so).
        target_epsilon: the budget that ``noise_multiplier`` was calibrated to, if it was.
        accountant: which accountant calibrated it.
        allocation: how noise is spread over the groups, see `allocate`.
        dimensions: ``d_k``, trained parameters of each group; ``weighted`` needs it.
        quantiles: how thresholds adapt; None: they are fixed.
        count_noise: ``sigma_b``, standard deviation of the noise on each group's count.
        repeated: steps that were released once more, each with new noise and a new batch,
            since the run continued on other devices than before. Every epsilon here includes them.
        max_batch: ``truncated_poisson``: the most records of a batch, and the size that smaller
            ones are filled up to; given as None, `accounting.fitting_size`. Else None.
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
    allocation: str = "global"
    dimensions: tuple[int, ...] = ()
    quantiles: Quantiles | None = None
    count_noise: float | None = None
    repeated: int = 0
    max_batch: int | None = None

    def __post_init__(self) -> None:
        for fault in self._faults():
            raise ValueError(fault)
        if self.sampling == "truncated_poisson" and self.max_batch is None:
            size = accounting.fitting_size(
                dataset_size=self.dataset_size,
                sampling_rate=self.sampling_rate,
                steps=max(1, self.steps),
                delta=self.delta,
            )
            object.__setattr__(self, "max_batch", size)

    def _faults(self) -> Iterator[str]:
        size, sigma = self.dataset_size, self.noise_multiplier
        if size < 1:
            yield "the training set is empty; expected at least one record"
        if not 1 <= self.batch_size <= size:
            yield (
                f"optim.batch_size is {self.batch_size} for {size} training records (or users, "
                f"where those are the unit); expected between 1 and {size}: type "
                f"optim.batch_size={fitting_batch(size)}, or a rate such as optim.sampling_rate=0.1"
            )
        accounting.validate(
            steps=self.steps,
            noise_multiplier=sigma,
            delta=self.delta,
            sampling_rate=self.sampling_rate,
        )
        if self.repeated < 0 or (self.repeated and not self.steps):
            yield f"{self.repeated} repeated steps of {self.steps}; expected 0 or more of some"
        for name, value, known in (
            ("sampling", self.sampling, SAMPLINGS),
            ("noise allocation", self.allocation, ALLOCATIONS),
        ):
            if value not in known:
                yield f"{name} is {value!r}; expected one of {', '.join(known)}"
        largest = size + 1 if self.sampling == "truncated_poisson" else 0
        if self.max_batch is not None and not 1 <= self.max_batch <= largest:
            yield (
                f"privacy.max_batch is {self.max_batch} with sampling={self.sampling}; expected 1 "
                f"to {size + 1} (one more than there are records) with truncated_poisson, else null"
            )
        if not self.thresholds and (sigma > 0 or self.quantiles):
            yield (
                "noise and adaptive thresholds need clipping, without which the sensitivity is "
                "unbounded; expected a threshold: type clip.threshold=0.1"
            )
        if self.dimensions and len(self.dimensions) != len(self.thresholds):
            yield (
                f"{len(self.dimensions)} dimensions for {len(self.thresholds)} thresholds; "
                "expected one of each per group"
            )
        if self.allocation == "weighted" and not (self.dimensions and min(self.dimensions) > 0):
            yield (
                f"dimensions are {self.dimensions}; expected the number of parameters of each "
                "group, since allocation 'weighted' divides by their roots"
            )
        if self.quantiles is None and self.count_noise is not None:
            yield f"count noise is {self.count_noise} but thresholds are fixed; expected None"
        if self.quantiles and sigma > 0 and not 0 < (self.count_noise or 0) < math.inf:
            yield (
                f"count noise is {self.count_noise}; expected a number > 0: counts released "
                "without noise protect no record"
            )

    @classmethod
    def calibrate(
        cls,
        *,
        dataset_size: int,
        batch_size: int,
        steps: int | None = None,
        epochs: float = 0.0,
        thresholds: tuple[float, ...],
        delta: float,
        target_epsilon: float | None = None,
        noise_multiplier: float | None = None,
        accountant: str = "pld",
        sampling: str = "poisson",
        max_batch: int | None = None,
    ) -> Mechanism:
        """Return a mechanism with this noise, or the least that spends at most ``target_epsilon``.

        The budget is the whole run's, counts included: `over` spreads it over groups. Steps follow
        from ``epochs`` where they are None.

        Raises:
            ValueError: for a batch that the data set cannot give, or a budget that is not positive
                or cannot be reached.
        """
        # Impossible batches are refused before their steps are counted.
        cls(*(dataset_size, batch_size, 0, 0.0, (), delta, sampling), max_batch=max_batch)
        if steps is None:
            steps = accounting.steps_for(
                dataset_size=dataset_size, batch_size=batch_size, epochs=epochs
            )
        sigma = 0.0 if noise_multiplier is None else noise_multiplier
        given = cls(
            *(dataset_size, batch_size, steps, sigma, thresholds, delta, sampling),
            max_batch=max_batch,
        )
        if noise_multiplier is not None:
            return given
        assert target_epsilon is not None
        sigma = accounting.calibrate_noise(
            target_epsilon=target_epsilon,
            delta=delta,
            sampling_rate=given.sampling_rate,
            steps=steps,
            accountant=accountant,
            overflow=given.overflow,
        )
        return replace(
            given, noise_multiplier=sigma, target_epsilon=target_epsilon, accountant=accountant
        )

    def over(
        self,
        thresholds: tuple[float, ...],
        *,
        allocation: str = "global",
        dimensions: tuple[int, ...] = (),
        quantiles: Quantiles | None = None,
        quantile_budget: float | None = None,
        count_noise: float | None = None,
    ) -> Mechanism:
        """Return the same guarantee, spent on these groups.

        Adaptive thresholds need one of ``count_noise`` and ``quantile_budget``, which is ``r``, the
        counts' share of the budget (He et al. 2022, Remark 3.1).

        Guarantee: `total_noise_multiplier`, which is what is accounted for, is never below that of
        this mechanism. With fixed thresholds it is the same number.

        Raises:
            ValueError: if the counts leave nothing for the gradients, or settings contradict.
        """
        gradient_noise = self.total_noise_multiplier
        if quantiles is not None:
            gradient_noise, count_noise = split_noise(
                gradient_noise, len(thresholds), budget=quantile_budget, count_noise=count_noise
            )
        elif quantile_budget is not None:
            raise ValueError(
                f"quantile budget is {quantile_budget} but thresholds are fixed; expected None"
            )
        return replace(
            self,
            noise_multiplier=gradient_noise,
            thresholds=thresholds,
            allocation=allocation,
            dimensions=dimensions,
            quantiles=quantiles,
            count_noise=count_noise,
        )

    @property
    def private(self) -> bool:
        """True if any guarantee holds: noise is added, or nothing is released at all."""
        return self.noise_multiplier > 0 or self.steps == 0

    @property
    def releases(self) -> int:
        """Noisy steps in all, those included that were released once more.

        Guarantee: a repeated step draws its batch and its noise from a separate key and is a
        function of what was released before, as any other step is. The run is therefore the
        adaptive composition of so many Poisson-subsampled Gaussian mechanisms, whichever of their
        outputs its weights were made of.
        """
        return self.steps + self.repeated

    @property
    def sampling_rate(self) -> float:
        return self.batch_size / self.dataset_size

    @property
    def overflow(self) -> float:
        """Probability that a sample leaves no room for one more record; 0 where none is cut."""
        if self.max_batch is None:
            return 0.0
        return accounting.overflow(
            dataset_size=self.dataset_size,
            sampling_rate=self.sampling_rate,
            max_batch=self.max_batch,
        )

    @property
    def spent(self) -> dict[str, float]:
        """The arguments of an accountant that decide the cost of a step."""
        return {
            "sampling_rate": self.sampling_rate,
            "noise_multiplier": self.total_noise_multiplier,
            **({"overflow": self.overflow} if self.overflow else {}),
        }

    @property
    def total_noise_multiplier(self) -> float:
        """``sigma`` of all that a step releases: what every accountant is asked about.

        Guarantee: gradients with ``sigma_new`` and ``K`` counts with ``sigma_b``, released together
        on one Poisson sample, are one subsampled Gaussian mechanism with
        ``sigma = (sigma_new^-2 + K/(2 sigma_b)^2)^(-1/2)`` (He et al. 2022, Proposition 3.1). Where
        one record takes the place of another, both parts move by at most twice as much.
        """
        if self.quantiles is None:
            return self.noise_multiplier
        return total_noise(self.noise_multiplier, len(self.thresholds), self.count_noise)

    @property
    def first_thresholds(self) -> tuple[float, ...]:
        """The thresholds of the first step."""
        return self.quantiles.rescaled(self.thresholds) if self.quantiles else self.thresholds

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of the (first) step's sum of clipped gradients."""
        return sensitivity(self.first_thresholds) if self.thresholds else math.inf

    @property
    def noise_std(self) -> float | None:
        """Standard deviation of the (first) step's noise; None where groups differ in it."""
        stds = set(self.noise_stds(self.first_thresholds)) or {0.0}
        return stds.pop() if len(stds) == 1 else None

    def noise_stds(self, thresholds: Sequence[float]) -> tuple[float, ...]:
        """Return the standard deviation of the noise on each coordinate of the sum, by group.

        Args:
            thresholds: those that the sum was clipped with.
        """
        if len(thresholds) != len(self.thresholds):
            raise ValueError(
                f"{len(thresholds)} thresholds for a mechanism over {len(self.thresholds)} groups; "
                "expected one per group"
            )
        return allocate(self.allocation, self.noise_multiplier, thresholds, self.dimensions)

    def epsilons(self, steps: int | None = None) -> dict[str, Any]:
        """Return epsilon at `delta` by every accountant after ``steps`` (default: all) steps.

        Here and below, releases of repeated steps come on top of ``steps``.
        """
        steps = self.steps if steps is None else steps
        return accounting.all_epsilons(**self.spent, steps=steps + self.repeated, delta=self.delta)

    @cached_property
    def _curve(self) -> accounting.RDPCurve:
        return accounting.rdp_curve(**self.spent)

    def rdp_after(self, steps: int) -> float:
        """Return RDP epsilon after ``steps`` steps; cheap enough for every step."""
        if not self.noise_multiplier > 0:
            return math.inf
        return self._curve.epsilon(steps + self.repeated, self.delta)

    def epsilon_after(self, steps: int) -> float:
        """Return an upper bound on epsilon after ``steps`` steps, to be shown while training.

        The lesser one of RDP and PLD. Of more than 100 steps PLD is computed at 50 to 100 evenly
        spaced ones, of which the next one bounds a step: it takes part of a second.
        """
        apart = max(1, self.steps // 50)
        later = min(self.steps, -(-steps // apart) * apart)
        pld = accounting.epsilon_pld(
            **self.spent, steps=max(steps, later) + self.repeated, delta=self.delta
        )
        rdp = self.rdp_after(steps)
        return rdp if pld is None else min(rdp, pld)

    def sampler(self, key: bytes) -> Sampler:
        """Return the sampler that this mechanism is accounted for (or labelled, for shuffle)."""
        from dpft.privacy.sampling import SAMPLERS

        return SAMPLERS[self.sampling](self, key)

    def noise(self, key: bytes, clipper: Clipper) -> GaussianNoise:
        """Return the noise for ``clipper``'s sums and counts.

        Raises:
            ValueError: if what the clipper releases is not what this mechanism accounts for.
        """
        from dpft.privacy.noise import GaussianNoise  # and torch, which takes a second

        return GaussianNoise(self, key, clipper)

    def to_dict(self) -> dict[str, Any]:
        """Return what ledger and record hold: the fields in use, and what follows from them."""
        fields = asdict(self) | {
            **{"thresholds": list(self.thresholds), "dimensions": list(self.dimensions)},
            **{"private": self.private, "sampling_rate": self.sampling_rate},
            "sensitivity": self.sensitivity if self.thresholds else None,
            "noise_std": self.noise_std,
            "overflow": self.overflow,
            "groups": len(self.thresholds),
            "total_noise_multiplier": self.total_noise_multiplier,
        }
        left_out = {"repeated"} if not self.repeated else set()
        if self.max_batch is None:
            left_out |= {"max_batch", "overflow"}
        if len(self.thresholds) <= 1 and self.allocation == "global" and not self.quantiles:
            left_out |= {"allocation", "dimensions", "quantiles", "count_noise", "groups"}
            left_out |= {"total_noise_multiplier"}
        if self.noise_std is None:
            fields["noise_stds"] = list(self.noise_stds(self.first_thresholds))
        return {name: value for name, value in fields.items() if name not in left_out}


def allocate(
    allocation: str, sigma: float, thresholds: Sequence[float], dimensions: Sequence[int] = ()
) -> tuple[float, ...]:
    """Return the standard deviation of the noise on every coordinate of each group.

    ``std_k = sigma S gamma_k`` with ``S = sqrt(sum_k C_k^2/gamma_k^2)`` (He et al. 2022, Algorithm
    1, line 13, and Appendix E):

    ============ ================ ========================================================
    allocation   gamma_k          what it does
    ============ ================ ========================================================
    global       1                the same noise on every coordinate of the model
    equal_budget C_k              each group spends the same; needs no other group's threshold
    weighted     C_k / sqrt(d_k)  about the same signal to noise on every coordinate
    ============ ================ ========================================================

    ``thresholds`` are ``C_k``, ``dimensions`` ``d_k``, the number of parameters per group, which
    ``weighted`` alone needs.

    Guarantee: ``sum_k (C_k / std_k)^2 = 1/sigma^2``: whatever the allocation, the release is one
    Gaussian mechanism with noise multiplier ``sigma``.
    """
    if not thresholds:
        return ()
    if sigma == 0:
        return (0.0,) * len(thresholds)
    if allocation == "global":
        return (sigma * sensitivity(thresholds),) * len(thresholds)
    if allocation == "weighted":
        gammas = [c / math.sqrt(d) for c, d in zip(thresholds, dimensions, strict=True)]
    else:
        gammas = list(thresholds)
    scaled = [c / gamma for c, gamma in zip(thresholds, gammas, strict=True)]
    spread = math.sqrt(math.fsum(c * c for c in scaled))
    return tuple(sigma * spread * gamma for gamma in gammas)
