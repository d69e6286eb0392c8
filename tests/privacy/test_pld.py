"""Privacy loss distributions: between the proven bounds, and a profile that is one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpft.privacy.accounting import epsilon_prv, epsilon_rdp
from dpft.privacy.accounting.pld import LossDistribution, PrivacyProfile


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta"),
    [(0.32, 1.865, 30, 2.5e-3), (1024 / 42_061, 1.0, 410, 1e-5), (64 / 60_000, 0.6, 2_000, 1e-6)],
)
def test_epsilon_lies_between_the_bounds_of_the_other_accountants(
    rate: float, noise: float, steps: int, delta: float
) -> None:
    event = {"sampling_rate": rate, "noise_multiplier": noise, "steps": steps}
    epsilon = LossDistribution(**event).epsilon(delta)
    prv = epsilon_prv(**event, delta=delta)

    assert prv.lower <= epsilon <= 1.01 * prv.upper
    assert epsilon <= epsilon_rdp(**event, delta=delta)


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
def test_the_profile_of_one_gaussian_release_is_the_exact_one(noise: float) -> None:
    """Balle & Wang (2018), Theorem 8; never below it."""
    epsilons = np.linspace(0, 4, 9)
    half = 0.5 / noise
    exact = stats.norm.cdf(half - epsilons * noise) - np.exp(epsilons) * stats.norm.cdf(
        -half - epsilons * noise
    )
    losses = LossDistribution(sampling_rate=1.0, noise_multiplier=noise, steps=1)
    found = losses.profile(epsilons).deltas

    assert (found >= exact - 1e-12).all()
    assert found == pytest.approx(exact, rel=1e-3, abs=1e-9)


def test_profile_and_epsilon_are_one_curve() -> None:
    losses = LossDistribution(sampling_rate=0.1, noise_multiplier=1.0, steps=50)

    for delta in (1e-2, 1e-4, 1e-6):
        profile = losses.profile(np.array([losses.epsilon(delta)]))
        assert profile.deltas[0] == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize("event", [(0.0, 1.0, 1), (1.5, 1.0, 1), (0.1, 0.0, 1), (0.1, 1.0, 0)])
def test_what_is_no_mechanism_is_refused(event: tuple[float, float, int]) -> None:
    rate, noise, steps = event
    with pytest.raises(ValueError, match="expected a rate"):
        LossDistribution(sampling_rate=rate, noise_multiplier=noise, steps=steps)


@pytest.mark.parametrize(
    ("epsilons", "deltas"), [([0.0, 1.0], [0.1]), ([-1.0], [0.1]), ([1.0], [1.1]), ([], [])]
)
def test_what_is_no_profile_is_refused(epsilons: list[float], deltas: list[float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        PrivacyProfile(np.array(epsilons), np.array(deltas))


def test_neighbours_are_told_apart_no_better_than_the_profile_says() -> None:
    """Both directions: of the likelihood test between with and without, at any threshold."""
    noise, rate = 1.0, 0.3
    profile = LossDistribution(sampling_rate=rate, noise_multiplier=noise, steps=1).profile(
        np.linspace(0, 5, 51)
    )
    cuts = np.linspace(-4, 6, 101)
    without = stats.norm.sf(cuts / noise)
    included = rate * stats.norm.sf((cuts - 1) / noise) + (1 - rate) * without
    for p, q in ((included, without), (1 - without, 1 - included)):
        bound = profile.deltas + np.exp(profile.epsilons) * q[:, None]
        assert (p[:, None] <= bound + 1e-9).all()
    assert math.isclose(profile.deltas[0], float((included - without).max()), rel_tol=1e-2)
