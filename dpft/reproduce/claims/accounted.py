"""What the accountants say of a claim."""

from __future__ import annotations

import math

from dpft.reproduce.claims.comparison import Comparison
from dpft.reproduce.claims.computed import computed

# Of Figure 6 of Li et al. 2022.
_N, _EPOCHS, _EPSILON, _DELTA = 50_000, 50, 3.0, 1e-5
# Where Tramèr and Boneh (2021) let the rule hold, up to the largest rate that the figure shows.
_FITTED = range(2, 8)
_SMALL = range(9, 13)


def square_root_rule() -> list[Comparison]:
    """Noise multipliers of small sampling rates, relative to ``c sqrt(q)`` (Li et al., Figure 6).

    ``c`` is the geometric mean of ``sigma / sqrt(q)`` at rates from 2^-7 to 2^-2.
    """
    fitted = [math.log(_sigma(k) / math.sqrt(2.0**-k)) for k in _FITTED]
    c = math.exp(sum(fitted) / len(fitted))
    found = []
    for k in _SMALL:
        rule, sigma = c * math.sqrt(2.0**-k), _sigma(k)
        found.append(
            computed(
                f"noise multiplier at q = 2^-{k}, relative to {c:.3g} sqrt(q)",
                sigma / rule,
                1.01,
                None,
                f"{sigma:.4f} and {rule:.4f}: ratio {sigma / rule:.3f}",
            )
        )
    return found


def _sigma(k: int) -> float:
    from dpft.privacy.accounting import calibrate_noise

    return calibrate_noise(
        target_epsilon=_EPSILON,
        delta=_DELTA,
        sampling_rate=2.0**-k,
        steps=_EPOCHS * 2**k,
        accountant="rdp",
    )


def groups_and_guarantee() -> list[Comparison]:
    """The same budget over 1, 12, 76 and 149 groups (GPT-2 in Bu et al., Table 5).

    The noise relative to the sensitivity and the epsilon of it must not move.
    """
    from dpft.privacy import Mechanism

    found = []
    for groups in (12, 76, 149):
        one, many = (
            Mechanism.calibrate(
                dataset_size=42_061,
                batch_size=1024,
                steps=410,
                thresholds=(0.1 / math.sqrt(k),) * k,
                delta=1 / 84_122,
                target_epsilon=3.0,
            )
            for k in (1, groups)
        )
        ratios = {
            "noise to sensitivity": many.noise_multiplier / one.noise_multiplier,
            "sensitivity": many.sensitivity / one.sensitivity,
            "epsilon": many.rdp_after(410) / one.rdp_after(410),
        }
        found += [
            computed(f"{name}, {groups} groups to one", ratio, 1 - 1e-9, 1 + 1e-9, f"{ratio:.9f}")
            for name, ratio in ratios.items()
        ]
    return found


def cost_of_quantiles() -> list[Comparison]:
    """More noise on the gradients for a share of 1% and 10% to quantiles (He et al., Prop. 3.1)."""
    from dpft.privacy.quantiles import split_noise

    found = []
    for share in (0.01, 0.1):
        gradients, _ = split_noise(1.0, 100, budget=share)
        found.append(
            computed(
                f"noise on the gradients with {share:.0%} of the budget to quantiles",
                gradients,
                None,
                1.06,
                f"{gradients:.4f} times that without quantiles",
            )
        )
    return found
