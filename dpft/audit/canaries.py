"""Canaries in separate slots: coins decide which are in the run, and steps score each.

A guarantee for adding or removing one record holds for the worst record and against an observer who
knows everything else. So do these tests: the sum of the real records is known and subtracted. A
canary has one coordinate of each clipping group, where its size is that group's threshold. They
show noise that is missing, far too small or the same at every step, sampling at another rate, and
thresholds that differ from the noise's.

**Epsilon is bounded from below by guesses: auditing in one run.**

A fair coin puts each of ``m`` canaries into the training data or leaves it out. An observer of the
releases guesses some coins, and differential privacy bounds the number of right guesses, for all
canaries of one run together. The game is that of Steinke, Nasr & Jagielski (2023,
arXiv:2305.08846), the statistics those of Mahloujifar, Melis & Chaudhuri (2024, arXiv:2410.22235):
the whole curve of guarantees that a run claims is tested, epsilon at every delta. At one delta
alone, ``m`` times delta is lost, which on small data is all that a test has.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpft.privacy import keys
from dpft.privacy.accounting.pld import LossDistribution, PrivacyProfile
from dpft.privacy.policies import QuantileThresholds

if TYPE_CHECKING:
    from dpft.privacy import Clipper, Mechanism

Array = npt.NDArray[np.float64]

CONFIDENCE = 0.95  # of the bound
_STATE = ("total", "lowest", "highest")
# Epsilons of the profile: close together where deltas are large, up to what guesses can refute.
_EPSILONS = np.concatenate([np.linspace(0, 8, 81), np.geomspace(8.2, 80, 40)])


class Canaries:
    """``m`` canaries on separate coordinates (Steinke et al. 2023, section 6: Dirac canaries).

    Their slots are sampled like records, after the last unit. An excluded canary's slot is sampled
    as well and adds nothing: the mechanism does not depend on the coins, as the bound requires.

    Each step gives every canary a value, which is larger where the release suggests the canary. Two
    rules make scores of them. Their *sum* is right where noise is fresh. Noise that is the same at
    several steps grows in the sum as the signal does; their *range* is then free of it, while an
    included canary is in some steps and not in others.

    Guarantee: an included canary adds to a step's sum a vector of norm ``sensitivity``, and counts
    as a norm at its threshold, as a record that the mechanism accounts for may.

    Attributes:
        included: whether each is in the run, shape (m,); secret.
        total, lowest, highest: of the values of all steps, shape (m,).
    """

    def __init__(self, count: int, clipper: Clipper, mechanism: Mechanism, key: bytes) -> None:
        generator = keys.generator(key, "audit", "gradients")
        self.included: npt.NDArray[np.bool_] = generator.random(count) < 0.5
        self.total: Array = np.zeros(count)
        self.lowest: Array = np.full(count, np.inf)
        self.highest: Array = np.full(count, -np.inf)
        self._clipper, self._mechanism = clipper, mechanism
        # In each group coordinates of the largest parameter, each as seldom as possible.
        self._places: list[tuple[str, Tensor]] = []
        for group in clipper.groups:
            name = max(group.parameters, key=lambda name: clipper.parameters[name].numel())
            size = clipper.parameters[name].numel()
            if count <= size:
                places = generator.choice(size, count, replace=False).astype(np.int64)
            else:
                rounds = [generator.permutation(size) for _ in range(-(-count // size))]
                places = np.concatenate(rounds)[:count].astype(np.int64)
            self._places.append((name, torch.from_numpy(places)))
        self._before: list[Tensor] = []
        self._scales: list[tuple[float, float]] = []

    def __len__(self) -> int:
        return len(self.included)

    @torch.no_grad()
    def insert(self, slots: Sequence[int]) -> None:
        """Add the included canaries of the sampled slots to a step's sums, before noise."""
        clipper = self._clipper
        sampled = [slot for slot in slots if self.included[slot]]
        stds = self._mechanism.noise_stds(clipper.thresholds)
        self._scales = list(zip(clipper.thresholds, stds, strict=True))
        self._before = []
        for (name, places), threshold in zip(self._places, clipper.thresholds, strict=True):
            parameter = clipper.parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            flat = parameter.grad.view(-1)
            places = places.to(flat.device)
            self._before.append(flat[places].double())
            here = places[sampled]
            flat.index_add_(0, here, torch.full_like(here, threshold, dtype=flat.dtype))
        if isinstance(clipper.policy, QuantileThresholds):
            # A norm at its threshold is counted as one below, centred as all counts are.
            clipper.policy.below += 0.5 * len(sampled)

    @torch.no_grad()
    def observe(self) -> None:
        """Value a release, before the weights move, by the likelihood of a canary in it.

        A step's value is ``sum_k <released_k - known_k, canary_k> C_k / std_k^2``: less half of
        ``sum_k C_k^2 / std_k^2`` it is the log-likelihood ratio of a step with the canary against
        one without. A canary is in a step at the sampling rate ``q`` only, so the summand is
        ``log(1 - q + q e^ratio)``, the best score by Neyman and Pearson. Without noise there is no
        likelihood: the value is ``sum_k <released_k - known_k, canary_k>``.
        """
        total = np.zeros(len(self))
        half, noisy = 0.0, True
        for (name, places), known, (threshold, std) in zip(
            self._places, self._before, self._scales, strict=True
        ):
            grad = self._clipper.parameters[name].grad
            assert grad is not None
            released = grad.view(-1)[places.to(grad.device)].double() * self._mechanism.batch_size
            weight = threshold / std**2 if std > 0 else threshold
            total += weight * (released - known).cpu().numpy()
            half += weight * threshold / 2
            noisy = noisy and std > 0
        if not noisy:
            self.add(total)
            return
        rate = self._mechanism.sampling_rate
        with np.errstate(divide="ignore"):  # at rate 1 no step is without the canary
            likelihood = np.logaddexp(np.log1p(-rate), np.log(rate) + total - half)
        self.add(total, likelihood)

    def add(self, values: Array, summands: Array | None = None) -> None:
        """Add a step's value of each canary, shape (m,), and its summand."""
        self.total += values if summands is None else summands
        self.lowest = np.minimum(self.lowest, values)
        self.highest = np.maximum(self.highest, values)

    @property
    def scores(self) -> dict[str, Array]:
        """Scores by both rules, each of shape (m,); without a step, all zero."""
        seen = self.highest >= self.lowest
        return {
            "sum": self.total,
            "range": np.subtract(self.highest, self.lowest, out=np.zeros(len(self)), where=seen),
        }

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint; all else follows from the key.

        Noiseless, so it belongs under ``private/``: a release less a canary's value is the real
        records' sum.
        """
        return {name: getattr(self, name).tolist() for name in _STATE}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        for name in _STATE:
            setattr(self, name, np.array(state[name], dtype=np.float64))

    def result(self, *, epsilon: float) -> dict[str, Any]:
        """Return the record's section: the lower bound, and whether it refutes the guarantee.

        Args:
            epsilon: the least upper bound that the run claims, at the mechanism's delta.
        """
        mechanism = self._mechanism

        @functools.cache
        def claim(noise_multiplier: float) -> tuple[float, PrivacyProfile]:
            """Return the run's claim if all releases of a step had this noise multiplier."""
            if not mechanism.steps:
                return 0.0, PrivacyProfile(np.zeros(1), np.zeros(1))
            losses = LossDistribution(
                sampling_rate=mechanism.sampling_rate,
                noise_multiplier=noise_multiplier,
                steps=mechanism.steps,
            )
            return losses.epsilon(mechanism.delta), losses.profile(_EPSILONS)

        bound = lower_bound(self.scores, self.included, claim, confidence=CONFIDENCE)
        lower = bound.pop("epsilon")
        refuted = lower > epsilon
        return {**bound, "epsilon_lower": lower, "delta": mechanism.delta, "refuted": refuted}


# Shares of the canaries that are guessed, the surest first: at both ends of the scores, and at the
# top alone, since a canary that was in and seldom sampled looks like one outside. Several are
# tried, and the confidence is divided among them, since which is best depends on the noise.
BOTH_ENDS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
TOP_ALONE = (0.05, 0.1, 0.2, 0.4)
LARGEST = 50.0  # no larger epsilon is tried
_SMALLEST = 0.02  # nor a smaller one
_LEAST_NOISE = 1e-2  # with which every claim is larger, if any is
_TOLERANCE = 1.01  # of the noise multiplier

Claim = Callable[[float], tuple[float, PrivacyProfile]]


@dataclass(frozen=True)
class Guesses:
    """Guesses of some coins by one rule."""

    score: str  # the name of the scores that the guesses go by
    canaries: int  # m, in and out
    guesses: int  # r, how many coins were guessed
    correct: int  # v, how many of them rightly


def guess(
    scores: Mapping[str, Sequence[float] | Array],
    included: Sequence[bool] | npt.NDArray[np.bool_],
) -> list[Guesses]:
    """Return all attempts at guessing the coins.

    Args:
        scores: of each canary, by one or more rules; larger means rather included. Each of shape
            ``(m,)``.
        included: the coins, shape ``(m,)``.
    """
    coins = np.asarray(included, dtype=bool)
    m = coins.size
    attempts = {(round(share * m) // 2, round(share * m) // 2) for share in BOTH_ENDS}
    attempts |= {(0, max(1, round(share * m))) for share in TOP_ALONE}  # one at least
    found = []
    for name, rule in scores.items():
        # Ties are broken by position, which is independent of the coins.
        right = coins[np.argsort(np.asarray(rule), kind="stable")]
        for bottom, top in sorted(attempts):
            if bottom + top:
                correct = int((~right[:bottom]).sum() + right[m - top :].sum())
                found.append(Guesses(name, m, bottom + top, correct))
    return found


def refuted_by(
    attempts: Sequence[Guesses], claim: PrivacyProfile, failure: float
) -> Guesses | None:
    """Return the first of `attempts` that refutes `claim`; None if all may come of it.

    Guarantee: if training satisfies `claim` for adding or removing one canary, and the coins are
    fair and independent, then with probability at least ``1 - failure`` the answer is None,
    whatever the attempts, as long as their sizes do not depend on the coins.
    """
    sure = unlikely(attempts, claim, failure / len(attempts))
    return attempts[int(np.argmax(sure))] if sure.any() else None


def unlikely(
    attempts: Sequence[Guesses], claim: PrivacyProfile, probability: float
) -> npt.NDArray[np.bool_]:
    """Return whether so many right guesses have at most this `probability` under `claim`, for each.

    As in Mahloujifar et al. 2024. Let ``p_i`` be the probability of exactly
    ``i`` right guesses and ``f'(x)`` the largest probability, under the claim, of an event whose
    probability without the canary (or with it) is ``x``: the least of ``delta + e^epsilon x`` and
    ``1 - e^-epsilon (1 - delta - x)``. Turning one coin makes a right guess wrong and leaves what
    the others see to the claim; summed over coins, by concavity, for every ``i``::

        sum_{j > i} j p_j / m  <=  f'( sum_{j >= i} (r - j) p_j / m )

    Suppose ``v`` or more are right with probability ``tau``; it costs least to have exactly ``v``.
    From ``i = v - 1`` down the inequality gives the probability that ``i`` and above must have. If
    more than 1 is needed in the end, ``tau`` was too large.
    """
    m = np.array([a.canaries for a in attempts], dtype=np.float64)
    r = np.array([a.guesses for a in attempts])
    v = np.array([a.correct for a in attempts])
    growth, shrink = np.exp(claim.epsilons), np.exp(-claim.epsilons)
    right = probability * v / m  # sum_{j > i} j p_j / m
    wrong = probability * (r - v) / m  # sum_{j > i} (r - j) p_j / m
    for i in range(int(v.max()) - 1, -1, -1):
        x = right[:, None]
        least = np.maximum(
            ((x - claim.deltas) * shrink).max(axis=1),
            (1 - claim.deltas - growth * (1 - x)).max(axis=1),
        )
        added = np.where(i < v, np.maximum(least - wrong, 0.0), 0.0)
        # Beyond 1 it is decided.
        wrong = np.minimum(wrong + added, 2.0)
        right = np.minimum(right + added * i / np.maximum(r - i, 1), 2.0)
    decided: npt.NDArray[np.bool_] = right + wrong > r / m
    return decided


def lower_bound(
    scores: Mapping[str, Sequence[float] | Array],
    included: Sequence[bool] | npt.NDArray[np.bool_],
    claim: Claim,
    *,
    confidence: float,
) -> dict[str, Any]:
    """Return the best lower bound on epsilon that the scores allow.

    Args:
        scores: of each canary, by one or more rules, see `guess`.
        included: the coins, shape ``(m,)``.
        claim: what a run with a given noise multiplier claims: epsilon at the delta of the run, and
            its profile. Both fall as the noise grows.
        confidence: that the bound is no higher than the truth, between 0 and 1.

    Returns:
        ``epsilon``: the largest of a claim of this form that the guesses refute, at the delta of
        the run; 0 if they refute none. Next to it ``confidence`` and the fields of the `Guesses`
        that prove the most.

    Guarantee: if training is as private as a run with some noise multiplier claims, and the coins
    are fair and independent, the bound exceeds that run's epsilon with probability at most
    ``1 - confidence``. It can refute a guarantee and prove none.
    """
    attempts = guess(scores, included)
    best, why = 0.0, attempts[0]
    least_refuted, most_allowed = math.inf, 0.0  # noise multipliers
    noise = 1.0  # to begin with
    while most_allowed * _TOLERANCE < least_refuted:
        epsilon, profile = claim(noise)
        if epsilon < _SMALLEST:
            if most_allowed or noise < _LEAST_NOISE:
                break
            noise *= 0.5
            continue
        found = refuted_by(attempts, profile, 1 - confidence)
        if found is None:
            most_allowed = noise
        else:
            least_refuted = noise
            best, why = epsilon, found
            if epsilon >= LARGEST:
                best = LARGEST
                break
        if most_allowed and least_refuted < math.inf:
            noise = math.sqrt(most_allowed * least_refuted)
        else:
            noise *= 2 if most_allowed else 0.5
    return {**asdict(why), "epsilon": best, "confidence": confidence}
