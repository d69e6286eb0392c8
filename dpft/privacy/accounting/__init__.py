"""Privacy accounting for DP-SGD: epsilon from noise, and noise from epsilon.

One mechanism is accounted here: ``steps`` releases of a sum of clipped per-example gradients plus
Gaussian noise of standard deviation ``noise_multiplier`` times the sensitivity, each on a Poisson
sample that takes every record with probability ``sampling_rate``, and is cut to a largest size if
``overflow`` says how often that may happen (`dpft.privacy.accounting.truncation`). Neighbouring
datasets differ by adding or removing one record. Four accountants turn it into epsilon (in nats) at
a given delta: privacy loss distributions (PLD; a proven upper bound, and the tightest: it is what a
run states), Renyi DP (a proven upper bound, about a tenth larger), and two that repeat what papers
print: the Gaussian-DP central limit theorem (an approximation, often too small), and numerical
composition of privacy random variables (PRV; bounds from both sides, proven for removing a record).
``docs/reference/accounting.md`` compares them with printed numbers and lists the limits.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dpft.privacy.accounting.arguments import spent, steps_for
from dpft.privacy.accounting.calibration import calibrate_noise
from dpft.privacy.accounting.pld import epsilon_pld
from dpft.privacy.accounting.printed import PRVEpsilon, epsilon_gdp_clt, epsilon_prv
from dpft.privacy.accounting.rdp import RDPCurve, composed, epsilon_rdp, rdp_curve, run_curve
from dpft.privacy.accounting.truncation import fitting_size, overflow

# The share by which the discretisation of PLD may exceed the truth.
_TOLERANCE = 0.01

__all__ = [
    "AccountingError",
    "PRVEpsilon",
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
]


class AccountingError(ArithmeticError):
    """Two proven bounds contradict each other."""


def all_epsilons(
    *, steps: int, delta: float, overflow: float = 0.0, **step: float
) -> dict[str, Any]:
    """Epsilon by every accountant, ready for JSON.

    Returns:
        ``{"pld": float or None, "rdp": float, "gdp_clt": float, "prv": {"lower", "estimate",
        "upper"}}``; ``pld`` is None where it was not computed, ``prv`` also has ``"note"`` when
        there is something to say. ``gdp_clt`` and ``prv`` are None where batches are cut, of which
        they know nothing.

    Raises:
        AccountingError: if PLD, the tighter bound, exceeds Renyi DP: then one of them is wrong.
    """
    kwargs: dict[str, Any] = {**step, "steps": steps, "delta": delta}
    rdp = epsilon_rdp(**kwargs, overflow=overflow)
    pld = epsilon_pld(**kwargs, overflow=overflow)
    if pld is not None and pld > rdp * (1 + _TOLERANCE):
        raise AccountingError(
            f"epsilon by privacy loss distributions is {pld:.6g}, more than {rdp:.6g} by Renyi DP, "
            f"for {kwargs}; expected at most as much, since both bound the same number and the "
            "former is the tighter: one of them is wrong. Type privacy.accountant=rdp only after "
            "you have found which"
        )
    epsilons: dict[str, Any] = {"pld": pld, "rdp": rdp, "gdp_clt": None, "prv": None}
    if not overflow:
        bounds = asdict(epsilon_prv(**kwargs))
        if not bounds["note"]:
            del bounds["note"]
        epsilons |= {"gdp_clt": epsilon_gdp_clt(**kwargs), "prv": bounds}
    return epsilons
