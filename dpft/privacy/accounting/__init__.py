"""Privacy accounting for DP-SGD: epsilon from noise, and noise from epsilon.

One mechanism is accounted here: ``steps`` releases of a sum of clipped per-example gradients plus
Gaussian noise of standard deviation ``noise_multiplier`` times the sensitivity, each on a Poisson
sample that takes every record with probability ``sampling_rate``. Neighbouring datasets differ by
adding or removing one record. Three accountants turn it into epsilon (in nats) at a given delta:
Renyi DP (a proven upper bound), the Gaussian-DP central limit theorem (an approximation, often too
small), and numerical composition of privacy random variables (bounds from both sides).
``docs/accounting.md`` compares them with printed numbers and lists the limits.
"""

from __future__ import annotations

from typing import Any

from dpft.privacy.accounting.calibration import Accountant, calibrate_noise
from dpft.privacy.accounting.gdp import epsilon_gdp_clt
from dpft.privacy.accounting.prv import PRVEpsilon, epsilon_prv
from dpft.privacy.accounting.rdp import Conversion, RDPCurve, epsilon_rdp, rdp_curve, run_curve
from dpft.privacy.accounting.selection import Trials, at_most, composed
from dpft.privacy.accounting.steps import steps_for

__all__ = [
    "Accountant",
    "Conversion",
    "PRVEpsilon",
    "RDPCurve",
    "Trials",
    "all_epsilons",
    "at_most",
    "calibrate_noise",
    "composed",
    "epsilon_gdp_clt",
    "epsilon_prv",
    "epsilon_rdp",
    "rdp_curve",
    "run_curve",
    "steps_for",
]


def all_epsilons(
    *, sampling_rate: float, noise_multiplier: float, steps: int, delta: float
) -> dict[str, Any]:
    """Epsilon by every accountant, ready for JSON.

    Returns:
        ``{"rdp": float, "gdp_clt": float, "prv": {"lower", "estimate", "upper"}}``; ``prv`` also
        has ``"note"`` when there is something to say.
    """
    kwargs: dict[str, Any] = {
        "sampling_rate": sampling_rate,
        "noise_multiplier": noise_multiplier,
        "steps": steps,
        "delta": delta,
    }
    prv = epsilon_prv(**kwargs)
    bounds: dict[str, Any] = {"lower": prv.lower, "estimate": prv.estimate, "upper": prv.upper}
    if prv.note:
        bounds["note"] = prv.note
    return {"rdp": epsilon_rdp(**kwargs), "gdp_clt": epsilon_gdp_clt(**kwargs), "prv": bounds}
