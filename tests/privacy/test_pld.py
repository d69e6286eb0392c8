"""Privacy loss distributions: between the proven bounds, and a profile that is one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpft.privacy.accounting import epsilon_pld, epsilon_prv, epsilon_rdp
from dpft.privacy.accounting.pld import LossDistribution, PrivacyProfile


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


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
def test_guesses_about_a_gaussian_release_are_bounded_by_the_closed_form(noise: float) -> None:
    """Dong et al. (2022), equation 6: the best test finds Phi(Phi^-1(false alarms) + 1 / sigma)."""
    losses = LossDistribution(sampling_rate=1.0, noise_multiplier=noise, steps=1)
    profile = losses.profile(np.linspace(0, 8, 401))
    alarms = np.array([0.001, 0.01, 0.05, 0.3, 0.9])
    exact = stats.norm.cdf(stats.norm.ppf(alarms) + 1 / noise)
    found = np.array([profile.found(alarm) for alarm in alarms])

    assert (found >= exact - 1e-12).all()
    assert found == pytest.approx(exact, abs=2e-3)
    assert profile.right() == pytest.approx(stats.norm.cdf(0.5 / noise), abs=1e-3)
    assert profile.right() >= stats.norm.cdf(0.5 / noise)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (3.0, 1e-4)])
def test_guesses_by_one_pair_alone_are_those_of_the_worst_mechanism(
    epsilon: float, delta: float
) -> None:
    """Kairouz et al. (2015), equation 9: four outcomes, sorted by likelihood ratio."""
    e = math.exp(epsilon)
    used = np.array([delta, (1 - delta) * e / (1 + e), (1 - delta) / (1 + e), 0.0])
    profile = PrivacyProfile(np.array([epsilon]), np.array([delta]))
    alarms = np.array([0.0, 0.01, 0.05, 0.3, 0.95, 1.0])
    # Neyman and Pearson: the likeliest outcomes first, and a share of the last.
    best = np.interp(alarms, np.cumsum([0, *used[::-1]]), np.cumsum([0, *used]))
    best[0] = delta

    assert [profile.found(alarm) for alarm in alarms] == pytest.approx(best, abs=1e-12)
    assert profile.right() == pytest.approx(0.5 + np.abs(used - used[::-1]).sum() / 4, abs=1e-12)


# Rate, noise, steps, delta: the papers' runs, and what is far from them.
SETTINGS = [
    *((1024 / 42_061, noise, 410, 1.19e-5) for noise in (0.5, 1.0, 10.0)),
    (1000 / 67_349, 0.8, 201, 7.4e-6),
    (6000 / 392_702, 0.6, 1170, 1.27e-6),
    (4096 / 50_000, 4.0, 1200, 1e-5),
    *((rate, 1.0, 100, 1e-5) for rate in (1e-6, 0.5, 0.99, 1.0)),
    *((0.01, 1.0, steps, 1e-5) for steps in (1, 10_000)),
    *((0.01, 1.0, 1000, delta) for delta in (0.1, 1e-12)),
    *((0.05, noise, 50, 1e-5) for noise in (0.15, 1000.0)),
    (1e-4, 0.7, 300_000, 1e-6),
]


@pytest.mark.parametrize(("rate", "noise", "steps", "delta"), SETTINGS)
def test_epsilon_agrees_with_other_accountants_and_a_finer_grid(
    rate: float, noise: float, steps: int, delta: float
) -> None:
    event = {"sampling_rate": rate, "noise_multiplier": noise, "steps": steps}
    found, ours = epsilon_pld(**event, delta=delta), epsilon_rdp(**event, delta=delta)
    if found is None:
        assert delta < 1e-9 or ours > 500
        return
    assert found <= ours
    prv = epsilon_prv(**event, delta=delta)
    assert prv["lower"] <= min(found, prv["estimate"])
    assert prv["estimate"] <= prv["upper"] <= ours
    if "note" not in prv:
        assert set(prv) == {"lower", "estimate", "upper"}
        assert found <= prv["upper"] * 1.01
        assert found < 1 or prv["upper"] - prv["lower"] < 0.03 * prv["estimate"]
    if rate < 1 and steps <= 1000 and found < 10:
        finer = LossDistribution(**event, grid=1e-4 if noise < 20 else 1e-6).epsilon(delta)
        assert found <= 1.01 * finer + 0.002
        assert finer <= 1.01 * found + 0.002
