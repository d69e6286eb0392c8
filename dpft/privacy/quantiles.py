"""Adaptive thresholds: private quantiles of the groups' gradient norms (He et al. 2022).

Each group keeps an estimate ``C_k`` of the ``q``-quantile of its per-example gradient norms. After
every step it is moved by the share ``b_k`` of records at or below it (Andrew et al. 2019; He et al.
2022, Algorithm 1, lines 15-17)::

    C_k <- C_k exp(-eta (b_k - q))

**What is released is the symmetrised count**, ``sum_i (1[n_ik <= C_k] - 1/2) + N(0, sigma_b^2)``:
one record moves it by 1/2 whichever side of ``C_k`` it falls on. Line 16 as printed adds the noise
to the plain count instead, which one record moves by 1, while Proposition 3.1 charges ``K`` counts
of sensitivity 1/2: run that way, the counts would cost four times what is accounted for. The share
is ``b_k = 1/2 + count / B`` with ``B`` the expected batch size, a public number: the size of the
batch that was drawn is private. Over the sampling, its mean is the true share.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpft.privacy.spec import HIGHEST, LOWEST, check_threshold

# exp() of more than this would leave the range above from anywhere within it.
_LARGEST_MOVE = 60.0
# Less of the budget than this left for the gradients is nothing at all, up to rounding.
_LEAST_LEFT = 1e-6


@dataclass(frozen=True)
class Quantiles:
    """The rule by which estimates of the norms' quantiles move and become thresholds.

    Attributes:
        target: the quantile ``q``, in (0, 1): the share of records that should not be clipped.
        learning_rate: ``eta`` of the geometric update; He et al. use 0.3 throughout.
        rescale: ``C``; thresholds are then ``C C_k / sqrt(sum_j C_j^2)``, whose joint norm is
            always ``C`` (Appendix A.1). None: the thresholds are the estimates.
    """

    target: float = 0.5
    learning_rate: float = 0.3
    rescale: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.target < 1:
            raise ValueError(
                f"target quantile is {self.target}; expected between 0 and 1, for instance 0.5"
            )
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(
                f"quantile learning rate is {self.learning_rate}; expected a finite number > 0"
            )
        if self.rescale is not None:
            check_threshold("all groups together (rescale)", self.rescale)

    def updated(
        self, estimates: Sequence[float], noisy_fractions: Sequence[float]
    ) -> tuple[float, ...]:
        """Return the estimates after one step, finite and positive always.

        Args:
            estimates: ``C_k``, one per group.
            noisy_fractions: ``b_k``, the released shares of norms at or below ``C_k``. Noise may
                carry them far outside [0, 1].

        Guarantee: a function of releases alone, hence free of charge (post-processing). The range
        that the estimates are kept in is a constant.

        Raises:
            ValueError: if the lengths differ or a share is not a number.
        """
        moved = []
        for estimate, fraction in zip(estimates, noisy_fractions, strict=True):
            if math.isnan(fraction):
                raise ValueError("a noisy fraction is not a number; expected finite counts")
            move = -self.learning_rate * (fraction - self.target)
            move = min(max(move, -_LARGEST_MOVE), _LARGEST_MOVE)
            moved.append(_within(_within(estimate) * math.exp(move)))
        return tuple(moved)

    def rescaled(self, estimates: Sequence[float]) -> tuple[float, ...]:
        """Return the clipping thresholds that go with ``estimates``, none of them below `LOWEST`.

        Noise is scaled to what this returns, so that the guarantee is the same.
        """
        if self.rescale is None:
            return tuple(estimates)
        joint = math.hypot(*estimates)
        return tuple(max(self.rescale * (estimate / joint), LOWEST) for estimate in estimates)


def _within(estimate: float) -> float:
    return min(max(estimate, LOWEST), HIGHEST)


def total_noise(gradient_noise: float, groups: int, count_noise: float | None) -> float:
    """Return ``sigma``: the noise multiplier of gradients and counts released together.

    Divide every part of the release by its noise's standard deviation. One record then moves the
    gradients by at most ``1/sigma_new`` and each of ``K`` counts by ``1/(2 sigma_b)``, all under
    noise of unit variance: a single Gaussian mechanism with
    ``sigma^-2 = sigma_new^-2 + K/(2 sigma_b)^2`` (Proposition 3.1, solved for ``sigma``). Both are
    computed from one Poisson sample, and so is the joint release.
    """
    if gradient_noise == 0 or not count_noise:
        return 0.0
    return 1 / math.hypot(1 / gradient_noise, math.sqrt(groups) / (2 * count_noise))


def split_noise(
    total: float, groups: int, *, budget: float | None = None, count_noise: float | None = None
) -> tuple[float, float | None]:
    """Spend the guarantee of noise multiplier ``total`` on gradients and counts.

    Args:
        total: ``sigma``, what the gradients alone would get.
        groups: ``K``, the number of counts released per step.
        budget: ``r``, the share of the Renyi budget that the counts get (Remark 3.1).
        count_noise: ``sigma_b`` itself, in place of ``r``.

    Returns:
        ``sigma_new`` (equation 3.1) and ``sigma_b``. The latter is None where ``total`` is 0.

    Guarantee: `total_noise` of the two is never below ``total``, not even by rounding.

    Raises:
        ValueError: if nothing is left for the gradients, or not exactly one of ``budget`` and
            ``count_noise`` is given.
    """
    if (budget is None) == (count_noise is None):
        raise ValueError(
            f"got quantile budget {budget} and quantile noise {count_noise}; expected one of them "
            "and not both: type for instance clip.quantile_budget=0.01 clip.quantile_noise=null"
        )
    if total == 0:
        return 0.0, None
    if count_noise is not None:
        least = total * math.sqrt(groups) / 2
        if not count_noise > 0 or (least / count_noise) ** 2 > 1 - _LEAST_LEFT:
            raise ValueError(
                f"clip.quantile_noise is {count_noise:g}: the counts of {groups} groups would "
                f"spend the whole budget and leave nothing for the gradients; expected more than "
                f"{least:.4g} at this budget. Type clip.quantile_noise={5 * least:.3g}, or "
                "clip.quantile_budget=0.01 clip.quantile_noise=null"
            )
        budget = (least / count_noise) ** 2
    else:
        assert budget is not None
        if not 0 < budget <= 1 - _LEAST_LEFT:
            raise ValueError(
                f"clip.quantile_budget is {budget}; expected a share of the budget between 0 and "
                "1, for instance 0.01"
            )
        count_noise = total * math.sqrt(groups) / (2 * math.sqrt(budget))
    gradient_noise = total / math.sqrt(1 - budget)
    step = 2.0**-52
    while total_noise(gradient_noise, groups, count_noise) < total:
        gradient_noise *= 1 + step
        step *= 2
    return gradient_noise, count_noise
