"""The lower bound: true on mechanisms whose guarantee is known, and not idle."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from scipy import stats

from dpft.audit.canaries import Guesses, guess, lower_bound, refuted_by, unlikely
from dpft.privacy.accounting.pld import LossDistribution, PrivacyProfile

GRID = np.linspace(0, 20, 101)


def pure(epsilon: float, delta: float = 0.0) -> PrivacyProfile:
    return PrivacyProfile(np.array([epsilon]), np.array([delta]))


def impossible(m: int, r: int, v: int, claim: PrivacyProfile, probability: float) -> bool:
    return bool(unlikely([Guesses("one", m, r, v)], claim, probability)[0])


@functools.cache
def gaussian(noise: float, rate: float = 1.0, steps: int = 1) -> LossDistribution:
    return LossDistribution(sampling_rate=rate, noise_multiplier=noise, steps=steps)


def subsampled(
    m: int, noise: float, rate: float, steps: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Likelihood ratios of canaries in that many Poisson-subsampled releases, and their coins."""
    generator = np.random.default_rng(seed)
    coins = generator.random(m) < 0.5
    scores = np.zeros(m)
    for _ in range(steps):
        seen = coins * (generator.random(m) < rate) + noise * generator.normal(size=m)
        with np.errstate(divide="ignore"):
            scores += np.logaddexp(np.log1p(-rate), np.log(rate) + (seen - 0.5) / noise**2)
    return scores, coins


def bound_of(
    scores: np.ndarray, coins: np.ndarray, delta: float, rate: float = 1.0, steps: int = 1
) -> float:
    def claim(noise: float) -> tuple[float, PrivacyProfile]:
        losses = gaussian(noise, rate, steps)
        return losses.epsilon(delta), losses.profile(GRID)

    bound = lower_bound({"one": scores}, coins, claim, confidence=0.95)
    return float(bound["epsilon"])


def test_a_search_that_begins_where_every_claim_is_small_goes_on_below() -> None:
    """Few and rare samples: at noise 1 epsilon is next to nothing, and no guess refutes that."""
    generator = np.random.default_rng(0)
    coins = generator.random(1000) < 0.5
    hits = generator.binomial(1000, 1e-4, 1000) * coins  # no noise at all
    assert gaussian(1.0, 1e-4, 1000).epsilon(1e-3) < 0.02
    assert bound_of(hits.astype(float), coins, 1e-3, 1e-4, 1000) > 0.3


def test_one_guess_is_right_as_often_as_the_claim_allows() -> None:
    """Pure privacy: with probability 1 / (1 + e^-epsilon), no more."""
    share = 1 / (1 + math.exp(-math.log(3)))

    assert not impossible(1, 1, 1, pure(math.log(3)), share - 1e-9)
    assert impossible(1, 1, 1, pure(math.log(3)), share + 1e-9)
    # Of a hundred canaries one is guessed, the one that is surest: the same.
    assert not impossible(100, 1, 1, pure(math.log(3)), share - 1e-9)
    assert impossible(100, 1, 1, pure(math.log(3)), share + 1e-9)


def test_delta_may_be_spent_on_all_coins_at_once() -> None:
    """What shows everything with probability delta, and otherwise nothing, is (0, delta)-DP."""
    delta, m = 0.01, 40
    everything = delta + (1 - delta) / 2**m

    assert not impossible(m, m, m, pure(0.0, delta), everything)
    assert impossible(m, m, m, pure(0.0, delta), 1.1 * everything)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize(("m", "r"), [(30, 30), (200, 30), (500, 500)])
def test_no_number_of_right_guesses_is_called_less_likely_than_it_is(
    epsilon: float, m: int, r: int
) -> None:
    """Randomised response gives Binomial(r, e^epsilon / (1 + e^epsilon)) right guesses."""
    right = stats.binom(r, 1 / (1 + math.exp(-epsilon)))
    for v in range(1, r + 1):
        truth = float(right.sf(v - 1))
        if truth > 1e-12:
            assert not impossible(m, r, v, pure(epsilon), truth * (1 - 1e-9)), v


# The rate, the steps and sigma of eps=3 at delta 1/(2N), for batches of 64 and 1,024.
SETTINGS = {200: (64 / 200, 30, 1.865), 42_061: (1024 / 42_061, 410, 1.0127)}


@pytest.mark.parametrize("size", SETTINGS)
def test_a_right_run_stays_below_its_epsilon_and_a_quarter_of_the_noise_does_not(size: int) -> None:
    rate, steps, noise = SETTINGS[size]
    delta = 1 / (2 * size)
    epsilon = gaussian(noise, rate, steps).epsilon(delta)
    claim = gaussian(noise, rate, steps).profile(GRID)
    games = (subsampled(1000, noise, rate, steps, seed) for seed in range(20))
    right = [guess({"one": scores}, coins) for scores, coins in games]
    wrong = [
        bound_of(*subsampled(1000, noise / 4, rate, steps, seed), delta, rate, steps)
        for seed in range(2)
    ]

    assert epsilon == pytest.approx(3, abs=0.01)
    assert sum(refuted_by(attempts, claim, 0.05) is not None for attempts in right) <= 2
    assert min(wrong) > 1.2 * epsilon


def test_several_rules_share_the_confidence_and_the_best_one_counts() -> None:
    coins = np.arange(1000) % 2 == 0
    scores = {"useless": np.zeros(1000), "open": coins.astype(float)}
    attempts = guess(scores, coins)
    alone = guess({"open": coins.astype(float)}, coins)
    found = refuted_by(attempts, gaussian(1.0).profile(GRID), 0.05)

    assert len(attempts) == 2 * len(alone)
    assert found is not None
    assert found.score == "open"
    # Each attempt of two rules is held to half the level of one.
    claim = gaussian(0.5).profile(GRID)
    levels = np.geomspace(0.5, 1e-6, 100)
    least = min(p for p in levels if unlikely(alone, claim, p).any()) * len(alone)
    assert refuted_by(alone, claim, 1.5 * least) is not None
    assert refuted_by(attempts, claim, 1.5 * least) is None


def test_how_many_are_guessed_does_not_depend_on_the_coins() -> None:
    """Sizes that were chosen by the coins would prove too much."""
    scores = {"one": np.arange(101.0)}
    games = (guess(scores, np.arange(101) < included) for included in range(102))

    assert len({tuple(attempt.guesses for attempt in attempts) for attempts in games}) == 1
