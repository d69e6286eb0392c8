"""The epsilons that papers print: by the GDP central limit theorem, and by PRV.

No run is calibrated by them unless its settings ask for it, and none states them as its guarantee.
"""

import importlib
import math
import warnings
from typing import Any

import numpy as np

from dpft.privacy.accounting.pld import epsilon_pld, gaussian_epsilon
from dpft.privacy.accounting.rdp import epsilon_rdp, rdp_curve
from dpft.privacy.accounting.step_arguments import validate

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
