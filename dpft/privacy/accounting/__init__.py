"""Privacy accounting for DP-SGD: epsilon from noise, and noise from epsilon.

One mechanism is accounted for: ``steps`` releases of a sum of clipped per-example gradients plus
Gaussian noise of standard deviation ``noise_multiplier`` times the sensitivity, each on a Poisson
sample that takes every record with probability ``sampling_rate``, and is cut to a largest size if
``overflow`` says how often that may happen (`dpft.privacy.accounting.step_arguments`). Neighbouring
data sets differ by adding or removing one record. Epsilon at a given delta comes from privacy loss
distributions (PLD; a proven upper bound, and the tightest: a run states it) and from Renyi DP (a
proven upper bound, about a tenth larger). Two accountants repeat what papers print: the central
limit theorem of Gaussian DP (an approximation, often too small), and numerical composition of
privacy random variables (PRV; bounds from both sides, proven for removing a record).
``docs/reference/accounting.md`` compares them with printed numbers and lists the limits.
"""

import functools
import math
from typing import Any

from dpft.privacy.accounting.pld import epsilon_pld
from dpft.privacy.accounting.printed import epsilon_gdp_clt, epsilon_prv
from dpft.privacy.accounting.rdp import RDPCurve, composed, epsilon_rdp, rdp_curve, run_curve
from dpft.privacy.accounting.step_arguments import (
    fitting_size,
    overflow,
    spent,
    steps_for,
    validate,
)
from dpft.privacy.spec import ACCOUNTANTS, Accountant

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
