"""The lower bound: true on mechanisms whose epsilon is known, and not idle."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpft.audit.bound import Bound, epsilon_from_guesses, lower_bound, p_value
from dpft.privacy import accounting


def randomized_response(m: int, epsilon: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    coins = generator.random(m) < 0.5
    honest = generator.random(m) < 1 / (1 + math.exp(-epsilon))
    return np.where(honest, coins, ~coins) + 1e-9 * generator.random(m), coins


def bound_of(scores: np.ndarray, coins: np.ndarray, delta: float) -> Bound:
    return lower_bound({"one": scores}, coins, delta=delta, confidence=0.95)


def test_p_value_of_pure_privacy_is_the_binomial_tail() -> None:
    assert p_value(10, 10, 8, 0.0, 0.0) == pytest.approx((45 + 10 + 1) / 1024)
    assert p_value(100, 1, 1, math.log(3), 0.0) == pytest.approx(0.75)


def test_delta_is_paid_for_by_hand() -> None:
    """One canary, one guess, right: beta = 1/2 at epsilon 0, alpha = P[1 > W >= 0] = 1/2."""
    assert p_value(1, 1, 1, 0.0, 0.01) == pytest.approx(0.5 + 2 * 0.01 * 0.5)


def test_p_value_grows_with_epsilon_and_delta_and_falls_with_right_guesses() -> None:
    by_epsilon = [p_value(500, 100, 80, e, 1e-5) for e in np.linspace(0, 4, 20)]
    by_delta = [p_value(500, 100, 80, 0.5, d) for d in (0, 1e-6, 1e-4, 1e-2)]
    by_correct = [p_value(500, 100, v, 0.5, 1e-5) for v in range(50, 101, 10)]

    assert by_epsilon == sorted(by_epsilon)
    assert by_delta == sorted(by_delta)
    assert by_correct == sorted(by_correct, reverse=True)


def test_the_bound_is_where_the_p_value_meets_the_level() -> None:
    epsilon = epsilon_from_guesses(1000, 200, 160, 1e-6, 0.05)

    assert p_value(1000, 200, 160, epsilon, 1e-6) == pytest.approx(0.05, rel=1e-6)
    assert epsilon_from_guesses(1000, 200, 100, 1e-6, 0.05) == 0


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomized_response_is_bounded_from_below_and_nearly_tightly(epsilon: float) -> None:
    bounds = [
        bound_of(*randomized_response(2000, epsilon, seed), delta=0.0).epsilon
        for seed in range(100)
    ]

    assert np.mean([bound > epsilon for bound in bounds]) <= 0.05
    assert np.median(bounds) > 0.7 * epsilon


def test_canaries_that_were_never_sampled_hide_among_those_outside() -> None:
    """A tenth of the canaries shows openly, the others not at all: guessing the top alone tells."""
    coins = np.arange(1000) % 2 == 0
    shown = coins & (np.arange(1000) % 10 == 0)
    bound = bound_of(shown.astype(float), coins, delta=1e-6)

    assert bound.guesses == bound.correct
    assert bound.epsilon > 2


def test_scores_that_tell_nothing_prove_nothing() -> None:
    generator = np.random.default_rng(0)
    bounds = [
        bound_of(generator.normal(size=400), generator.random(400) < 0.5, delta=1e-5).epsilon
        for _ in range(60)
    ]

    assert np.mean([bound > 0 for bound in bounds]) <= 0.08


def test_gaussian_noise_is_bounded_below_its_own_epsilon() -> None:
    """One release with sensitivity 1 and noise 1: the bound stays below the exact epsilon."""
    generator = np.random.default_rng(1)
    delta = 1e-5
    exact = next(
        e
        for e in np.arange(0.0, 8, 0.001)
        if stats.norm.cdf(0.5 - e) - math.exp(e) * stats.norm.cdf(-0.5 - e) <= delta
    )
    bounds = []
    for _ in range(40):
        coins = generator.random(5000) < 0.5
        scores = coins + generator.normal(size=5000)
        bounds.append(bound_of(scores, coins, delta=delta).epsilon)

    assert max(bounds) < exact
    assert np.median(bounds) > 0.8
    assert exact <= accounting.epsilon_rdp(
        sampling_rate=1.0, noise_multiplier=1.0, steps=1, delta=delta
    )


def test_coins_that_show_openly_prove_as_much_as_so_many_can() -> None:
    coins = np.arange(1000) % 2 == 0
    bound = bound_of(coins.astype(float), coins, delta=1e-6)

    assert bound.correct == bound.guesses
    assert bound.epsilon > 4


@pytest.mark.parametrize(
    ("scores", "coins"), [([], []), ([1.0], [True, False]), ([math.nan, 1.0], [True, False])]
)
def test_scores_that_do_not_fit_are_refused(scores: list[float], coins: list[bool]) -> None:
    with pytest.raises(ValueError, match="expected"):
        lower_bound({"one": scores}, coins, delta=1e-5, confidence=0.95)


def test_several_rules_share_the_confidence_and_the_best_one_counts() -> None:
    coins = np.arange(1000) % 2 == 0
    useless = np.zeros(1000)
    alone = bound_of(coins.astype(float), coins, delta=1e-6)
    scores = {"useless": useless, "open": coins.astype(float)}
    both = lower_bound(scores, coins, delta=1e-6, confidence=0.95)

    assert (both.score, both.correct) == ("open", alone.correct)
    # Twenty attempts in place of ten: each is held to half the level.
    fair = epsilon_from_guesses(1000, both.guesses, both.correct, 1e-6, 0.05 / 20)
    assert both.epsilon == fair < alone.epsilon


def test_no_rule_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one rule"):
        lower_bound({}, [True], delta=1e-5, confidence=0.95)
