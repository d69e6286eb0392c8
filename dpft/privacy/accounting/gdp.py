"""Gaussian DP: exact for one Gaussian mechanism, by a central limit theorem for many samples."""

from __future__ import annotations

import math

from scipy import optimize, special

from dpft.privacy.accounting.checks import validate


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of mu-GDP at delta: the inverse of Dong et al. (2019), Corollary 1.

    With epsilon = mu^2/2 + mu x, delta is Phi(-x) - exp(-x^2/2) erfcx((x + mu) / sqrt 2) / 2: no
    power of e is left to overflow, and x is bounded whatever mu is.
    """
    if special.erf(mu / math.sqrt(8)) <= delta:  # delta at epsilon 0 is already small enough
        return 0.0
    if mu > 1e150:
        return math.inf

    def excess(x: float) -> float:
        tail = special.erfcx((x + mu) / math.sqrt(2))
        if x < 0:
            value = special.ndtr(-x) - math.exp(-x * x / 2) * tail / 2
        else:
            value = math.exp(-x * x / 2) * (special.erfcx(x / math.sqrt(2)) - tail) / 2
        return math.log(max(value, 1e-320)) - math.log(delta)

    # delta(x) <= Phi(-x) lies between these for every delta in (0, 1).
    low, high = max(-mu / 2, -40.0), math.sqrt(-2 * math.log(delta))
    x = optimize.brentq(excess, low, high, xtol=1e-13, rtol=1e-13)
    return max(0.0, mu * (mu / 2 + float(x)))


def epsilon_gdp_clt(
    *, sampling_rate: float, noise_multiplier: float, steps: int, delta: float
) -> float:
    """Epsilon by the central limit theorem of Gaussian DP.

    ``mu = q sqrt(T (exp(1 / sigma^2) - 1))`` (Bu et al., 2020, Poisson sampling), read as mu-GDP.
    An approximation for many steps, usually too small: printed beside the papers' numbers, not a
    guarantee. At ``sampling_rate=1`` it is not the exact ``sqrt(T) / sigma`` but above it.

    Raises:
        ValueError: if an argument is outside its range.
    """
    validate(
        sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, steps=steps, delta=delta
    )
    if steps == 0 or noise_multiplier > 1e100:
        return 0.0
    if noise_multiplier < 1e-100:
        return math.inf
    x = 1 / float(noise_multiplier) ** 2
    log_growth = x + math.log(-math.expm1(-x))  # log(exp(x) - 1), for any x
    log_mu = math.log(sampling_rate) + (math.log(steps) + log_growth) / 2
    return gaussian_epsilon(math.exp(log_mu), delta) if log_mu < 345 else math.inf
