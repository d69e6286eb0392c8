"""Bound epsilon from below by guesses: auditing in one run.

A fair coin puts each of ``m`` canaries into the training data or leaves it out. An observer of the
releases guesses some coins, and differential privacy bounds the number of right guesses, for all
canaries of one run together. The game is that of Steinke, Nasr & Jagielski (2023,
arXiv:2305.08846), the statistics those of Mahloujifar, Melis & Chaudhuri (2024, arXiv:2410.22235):
the whole curve of guarantees that a run claims is tested, epsilon at every delta. At one delta
alone, ``m`` times delta is lost, which on small data is all that a test has.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpft.privacy.accounting.pld import PrivacyProfile

Array = npt.NDArray[np.float64]

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
