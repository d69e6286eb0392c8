"""Privacy accounting for DP-SGD: epsilon from noise, and noise from epsilon.

One mechanism is accounted for: ``steps`` releases of a sum of clipped per-example gradients plus
Gaussian noise of standard deviation ``noise_multiplier`` times the sensitivity, each on a Poisson
sample that takes every record with probability ``sampling_rate``, and is cut to a largest size if
``overflow`` says how often that may happen (`dpft.privacy.accounting.rdp`). Neighbouring
data sets differ by adding or removing one record. Epsilon at a given delta comes from privacy loss
distributions (PLD; a proven upper bound, and the tightest: a run states it) and from Renyi DP (a
proven upper bound, about a tenth larger). Two accountants repeat what papers print: the central
limit theorem of Gaussian DP (an approximation, often too small), and numerical composition of
privacy random variables (PRV; bounds from both sides, proven for removing a record).
No run is calibrated by these two unless its settings ask for it, and none states them as its
guarantee.
``docs/reference/accounting.md`` compares them with printed numbers and lists the limits.
"""

import functools
import importlib
import math
import warnings
from typing import Any

import numpy as np

from dpft.privacy.accounting.pld import epsilon_pld, gaussian_epsilon
from dpft.privacy.accounting.rdp import (
    RDPCurve,
    composed,
    epsilon_rdp,
    fitting_size,
    overflow,
    rdp_curve,
    run_curve,
    spent,
    steps_for,
    validate,
)
from dpft.privacy.spec import ACCOUNTANTS, Accountant

PRV_RELATIVE_ERROR = 0.01  # wanted error of the PRV bounds, as a share of the RDP epsilon
PRV_MAX_POINTS = 200_000  # of the PRV grid: about 2 seconds and 200 MB
PRV_MAX_EPSILON = 200.0  # beyond it no guarantee is left to refine, and exp() loses its digits
_TOO_SMALL = 0.95


def epsilon_gdp_clt(
    *, sampling_rate: float, noise_multiplier: float, steps: int, delta: float
) -> float:
    """Return epsilon by the central limit theorem of Gaussian DP.

    ``mu = q sqrt(T (exp(1 / sigma^2) - 1))`` (Bu et al., 2020, Poisson sampling), read as mu-GDP.
    It is an approximation for many steps, usually too small, and no guarantee. At
    ``sampling_rate=1`` it is above the exact ``sqrt(T) / sigma``.

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


def _prv_bounds(
    *, sampling_rate: float, noise_multiplier: float, steps: int, delta: float
) -> tuple[float, ...]:
    curve = rdp_curve(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
    expected = curve.epsilon(steps, delta)
    if expected > PRV_MAX_EPSILON:
        raise ArithmeticError(f"epsilon is beyond {PRV_MAX_EPSILON:g}")
    delta_error = delta / 1000
    # The library takes its probabilities in double precision; each step may add that rounding.
    if steps * np.finfo(np.float64).eps > delta_error:
        raise ArithmeticError(f"delta={delta:g} drowns in the rounding of {steps} steps")
    # The library's own domain (Gopi et al., 2021, Remark 5.6), with our Renyi DP: its own may hang.
    tail = max(curve.epsilon(steps, delta_error / 4), curve.epsilon(1, delta_error / 8 / steps))
    mesh_factor = math.sqrt(steps / 2 * math.log(12 / delta_error))
    width = max(tail, PRV_RELATIVE_ERROR * expected) + 3
    eps_error = max(PRV_RELATIVE_ERROR * expected, 2 * width * mesh_factor / PRV_MAX_POINTS)
    if not eps_error < expected / 2:
        raise ArithmeticError(
            f"bounds tighter than epsilon itself need a grid of over {PRV_MAX_POINTS} points"
        )
    from scipy import integrate

    prv_accountant = importlib.import_module("prv_accountant")
    with warnings.catch_warnings():
        warnings.simplefilter("error", integrate.IntegrationWarning)
        warnings.filterwarnings("ignore", message="Assuming that true epsilon")
        step = prv_accountant.PoissonSubsampledGaussianMechanism(
            sampling_probability=sampling_rate, noise_multiplier=noise_multiplier
        )
        accountant = prv_accountant.PRVAccountant(
            prvs=[step],
            max_self_compositions=[steps],
            eps_error=eps_error,
            delta_error=delta_error,
            eps_max=width,
        )
        lower, estimate, upper = accountant.compute_epsilon(delta, [steps])
    if not (math.isfinite(upper) and lower <= estimate <= upper):
        raise ArithmeticError(f"it returned {lower}, {estimate}, {upper}")
    return max(0.0, lower), max(0.0, estimate), max(0.0, upper)


def epsilon_prv(
    *, sampling_rate: float, noise_multiplier: float, steps: int, delta: float
) -> dict[str, Any]:
    """Return ``lower``, ``estimate`` and ``upper`` by numerical composition (Gopi et al., 2021).

    The wanted error is 1% of epsilon, more where the grid would outgrow ``PRV_MAX_POINTS``. Where
    the library fails or epsilon is huge, Renyi DP gives ``estimate`` and ``upper``, ``lower`` is 0
    and ``note`` says why. At ``sampling_rate=1`` the exact epsilon of the one Gaussian mechanism
    that the composition is.

    Guarantee: the true epsilon is at most ``upper`` for removing a record, up to rounding in the
    library. No proof is known for adding one (docs/reference/accounting.md, Limits), except where
    ``note`` says that Renyi DP or the exact formula replaces it. ``estimate`` guarantees nothing.

    Raises:
        ValueError: if an argument is outside its range.
    """
    q, sigma = float(sampling_rate), float(noise_multiplier)
    bound = epsilon_rdp(sampling_rate=q, noise_multiplier=sigma, steps=steps, delta=delta)
    if bound in (0.0, math.inf):
        return {"lower": bound, "estimate": bound, "upper": bound}
    if q == 1:
        exact = min(bound, gaussian_epsilon(math.sqrt(steps) / sigma, delta))
        note = "full batches: exact for Gaussian noise"
        return {"lower": exact, "estimate": exact, "upper": exact, "note": note}
    event: dict[str, Any] = {
        **{"sampling_rate": q, "noise_multiplier": sigma},
        **{"steps": int(steps), "delta": float(delta)},
    }
    fallback = {"lower": 0.0, "estimate": bound, "upper": bound}
    try:
        found = _prv_bounds(**event)
    except Exception as error:  # whatever the library trips over, Renyi DP still gives a bound
        why = str(error) if type(error) is ArithmeticError else f"{type(error).__name__}: {error}"
        return {**fallback, "note": f"PRV gave no bounds ({why}); RDP"}
    # The library has returned 0 for a million steps. Without proof against such cases: a check
    # against a proven bound that is at most 1% above the truth.
    least = epsilon_pld(**event)
    if least is not None and found[2] < _TOO_SMALL * least:
        note = f"PRV gave an upper bound of {found[2]:.3g}, which cannot be; RDP"
        return {**fallback, "note": note}
    # Both are upper bounds, so the smaller one is too.
    lower, estimate, upper = (min(value, bound) for value in found)
    return {"lower": lower, "estimate": estimate, "upper": upper}


MIN_NOISE, MAX_NOISE = 1e-6, 1e6  # where calibration looks
_TOLERANCE = 1e-4  # it may find at most this share more than the least noise

__all__ = [
    "RDPCurve",
    "all_epsilons",
    "calibrate_noise",
    "composed",
    "epsilon_gdp_clt",
    "epsilon_pld",
    "epsilon_prv",
    "epsilon_rdp",
    "fitting_size",
    "overflow",
    "rdp_curve",
    "run_curve",
    "spent",
    "steps_for",
    "validate",
]


def all_epsilons(
    *, steps: int, delta: float, overflow: float = 0.0, **step: float
) -> dict[str, Any]:
    """Return epsilon by every accountant, ready for JSON.

    Returns:
        ``pld``, None where it was not computed; ``rdp``; and, None where batches are cut,
        ``gdp_clt`` and ``prv`` (see `epsilon_prv`).
    """
    event: dict[str, Any] = {**step, "steps": steps, "delta": delta}
    return {
        "pld": epsilon_pld(**event, overflow=overflow),
        "rdp": epsilon_rdp(**event, overflow=overflow),
        "gdp_clt": None if overflow else epsilon_gdp_clt(**event),
        "prv": None if overflow else epsilon_prv(**event),
    }


def calibrate_noise(
    *,
    target_epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    accountant: Accountant | str = "pld",
    overflow: float = 0.0,
) -> float:
    """Return the smallest noise multiplier whose epsilon is at most ``target_epsilon``.

    An infinite budget, like 0 steps, needs no noise and gives 0. Arguments are those of
    `all_epsilons`; ``accountant`` is one of `dpft.privacy.spec.ACCOUNTANTS`.

    Guarantee: epsilon of the result does not exceed the target.

    Raises:
        ValueError: if an argument is outside its range, or no noise is enough.
    """
    validate(sampling_rate=sampling_rate, steps=steps, delta=delta, overflow=overflow)
    if not target_epsilon > 0:
        raise ValueError(
            f"got epsilon={target_epsilon}; expected a number > 0: type for instance "
            "privacy.epsilon=8"
        )
    if accountant not in ACCOUNTANTS:
        raise ValueError(
            f"got accountant={accountant!r}; expected one of {', '.join(ACCOUNTANTS)}: type "
            "privacy.accountant=pld"
        )
    if steps == 0 or target_epsilon == math.inf:
        return 0.0
    event: dict[str, Any] = {
        **{"accountant": accountant, "delta": float(delta)},
        **{"sampling_rate": float(sampling_rate), "steps": int(steps)},
        **({"overflow": float(overflow)} if overflow else {}),
    }
    sigma = _search_noise(target=float(target_epsilon), tol=_TOLERANCE, **event)
    if sigma == math.inf:
        least = _epsilon(noise_multiplier=MAX_NOISE, **event)
        raise ValueError(
            f"got epsilon={target_epsilon} with delta={delta}; expected at least {least:.3g}, "
            f"the least that accountant={accountant} can show even with noise {MAX_NOISE:g}: type "
            f"privacy.epsilon={math.ceil(least * 1e3) / 1e3:g}, or a larger privacy.delta"
        )
    return sigma


def _epsilon(accountant: str, **event: Any) -> float:
    found = epsilon_pld(**event) if accountant == "pld" else None
    return epsilon_rdp(**event) if found is None else found


@functools.lru_cache
def _search_noise(*, target: float, tol: float, **event: Any) -> float:
    """Return the noise multiplier, or infinity where none up to ``MAX_NOISE`` is enough.

    dp-accounting's ``calibrate_dp_mechanism`` does not replace it: the grid of losses cannot follow
    the noise there (2% more noise for epsilon 0.01 of E2E), and it evaluates epsilon 11 to 62 times
    in place of 6.
    """
    from scipy import optimize  # half a second, and most answers are on disk

    @functools.cache  # brentq asks again for the ends of the bracket
    def excess(log_sigma: float) -> float:
        epsilon = _epsilon(noise_multiplier=math.exp(log_sigma), **event)
        return math.log(min(max(epsilon, 1e-300), 1e300) / target)

    # PLD is slow, and never above RDP, which finds where to start.
    high = 0.0
    if event["accountant"] == "pld":
        found = _search_noise(target=target, tol=1e-3, **{**event, "accountant": "rdp"})
        high = math.log(found) if math.isfinite(found) else high
    while excess(high) > 0:
        if high > math.log(MAX_NOISE):
            return math.inf
        high += 0.5
    low = high - 0.5
    while excess(low) <= 0:
        if low < math.log(MIN_NOISE):
            return math.exp(low)
        low, high = low - 0.5, low
    # The sign changes within tol / 4 of the root, so the least sufficient noise is just above it.
    root = optimize.brentq(excess, low, high, xtol=tol / 4, rtol=1e-12)
    for candidate in (root, root + tol / 4, root + tol / 2, root + tol):
        if excess(candidate) <= 0:
            return math.exp(candidate)
    return math.exp(high)
