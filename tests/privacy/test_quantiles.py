"""Estimates find the quantile, stay finite, and cost what they are said to cost."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpft.privacy.quantiles import HIGHEST, LOWEST, Quantiles, split_noise, total_noise


def test_the_update_is_the_papers():
    """He et al. 2022, Algorithm 1, line 16."""
    moved = Quantiles(target=0.7, learning_rate=0.3).updated((2.0, 0.1, 5.0), (0.9, 0.1, 0.7))
    assert moved == pytest.approx((2 * math.exp(-0.06), 0.1 * math.exp(0.18), 5.0), rel=1e-15)


def norms_and_shares(rng, scales, estimates, rate, size):
    """One Poisson batch of log-normal norms, and what a clipper would count in it."""
    batch = rng.random(size) < rate
    norms = scales * np.exp(rng.standard_normal((int(batch.sum()), len(scales))))
    return ((norms <= np.asarray(estimates)) - 0.5).sum(0)


@pytest.mark.parametrize(("target", "start"), [(0.3, 1e-4), (0.85, 1e3)])
def test_without_noise_estimates_converge_to_the_true_quantile(target, start):
    """In batches of random size too: only the expected one enters."""
    rng = np.random.default_rng(0)
    scales = np.array([1e-3, 0.3, 1.0, 50.0])
    quantiles = Quantiles(target=target, learning_rate=0.3)
    estimates, tail = (start,) * 4, []
    for step in range(600):
        counts = norms_and_shares(rng, scales, estimates, 0.1, 5000)
        estimates = quantiles.updated(estimates, 0.5 + counts / 500)
        if step >= 300:
            tail.append(np.log(estimates))
    # The truth, by bisection on the normal distribution function.
    low, high = -5.0, 5.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        below = 0.5 * (1 + math.erf(middle / math.sqrt(2))) < target
        low, high = (middle, high) if below else (low, middle)
    np.testing.assert_allclose(np.mean(tail, 0) - np.log(scales), low, atol=0.03)


@pytest.mark.parametrize(
    ("fraction", "rescale"), [(0.0, None), (-1e6, 1.0), (-math.inf, None), (1e308, 1.0)]
)
def test_a_thousand_extreme_counts_leave_thresholds_finite(fraction, rescale):
    quantiles = Quantiles(0.5, 0.3, rescale)
    estimates = (0.1, 1e-12, 1e12)
    for step in range(1000):
        estimates = quantiles.updated(estimates, (fraction, -fraction, fraction * (-1) ** step))
        assert all(LOWEST <= estimate <= HIGHEST for estimate in estimates)
    thresholds = quantiles.rescaled(estimates)
    assert all(math.isfinite(c) and np.float32(c) > 0 for c in thresholds)
    # The bounds do not trap what they stop.
    assert max(quantiles.updated(estimates, (9.0,) * 3)) < HIGHEST
    assert min(quantiles.updated(estimates, (-9.0,) * 3)) > LOWEST


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=150), st.floats(1e-3, 1e3))
def test_rescaled_thresholds_keep_their_ratios_and_a_joint_norm(estimates, C):
    """He et al. 2022, Appendix A.1; none falls below what float32 can tell."""
    thresholds = Quantiles(0.5, rescale=C).rescaled(estimates)
    assert math.hypot(*thresholds) == pytest.approx(C, rel=1e-12)
    for c, estimate in zip(thresholds, estimates, strict=True):
        expected = max(C * (estimate / math.hypot(*estimates)), LOWEST)
        assert c == pytest.approx(expected, rel=1e-12)
    assert Quantiles(0.5).rescaled(estimates) == tuple(estimates)


sigmas = st.floats(1e-3, 1e3)
groups = st.integers(1, 500)


@given(sigmas, groups, st.floats(1e-9, 1 - 1e-5))
def test_a_split_spends_exactly_the_target_and_never_more(sigma, K, r):
    """Proposition 3.1 and Remark 3.1, rounding included."""
    gradients, counts = split_noise(sigma, K, budget=r)
    assert K * sigma**2 / (4 * counts**2) == pytest.approx(r, rel=1e-9)
    assert gradients == pytest.approx(sigma / math.sqrt(1 - r), rel=1e-9)
    assert sigma <= total_noise(gradients, K, counts) <= sigma * (1 + 1e-12)


@given(sigmas, groups, st.floats(1.001, 1e6))
def test_count_noise_may_be_given_instead(sigma, K, times):
    counts = times * sigma * math.sqrt(K) / 2
    gradients, same = split_noise(sigma, K, count_noise=counts)
    assert same == counts
    expected = (sigma**-2 - K / (2 * counts) ** 2) ** -0.5  # equation 3.1, as printed
    assert gradients == pytest.approx(expected, rel=1e-6)
    assert sigma <= total_noise(gradients, K, counts) <= sigma * (1 + 1e-12)


@pytest.mark.parametrize(
    "settings",
    [{}, {"budget": 0.1, "count_noise": 3.0}, {"budget": 1.0}, {"budget": -0.1}]
    + [{"count_noise": math.sqrt(149) * share} for share in (0.1, 0.999, 1.0)],
)
def test_a_split_that_leaves_nothing_or_says_nothing_is_refused(settings):
    with pytest.raises(ValueError, match=r"clip\.quantile_.*expected|expected one of them"):
        split_noise(2.0, 149, **settings)


def test_impossible_settings_are_refused():
    for settings in ({"target": 1.0}, {"learning_rate": math.inf}, {"rescale": -1.0}):
        with pytest.raises(ValueError, match="expected"):
            Quantiles(**settings)
    with pytest.raises(ValueError, match="not a number"):
        Quantiles(0.5).updated((1.0,), (math.nan,))
