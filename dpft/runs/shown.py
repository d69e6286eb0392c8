"""How figures of a guarantee are shown: rounded to the safe side, and called what they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any

# The largest epsilon of the "reasonable" tier of Ponomareva et al., How to DP-fy ML, 2023.
_REASONABLE = 10
SHUFFLED = "Epsilon computed for Poisson sampling, run with shuffled batches."
# PRV is composed for one direction, removing a record (docs/reference/accounting.md, Limits).
_KINDS = {
    "pld": "upper bound",
    "rdp": "upper bound",
    "prv": "upper bound for removal; for addition unproven",
}
# What a statement names: the tightest proven bound that a record has.
_STATED = {"pld": "privacy loss distributions", "rdp": "Renyi accounting"}


def number(value: float | None) -> str:
    """Four significant digits, to the nearest: for what promises nothing."""
    return "no finite number" if value is None else f"{value:.4g}"


def up(value: float | None) -> str:
    """An upper bound on epsilon: three decimals, never less than the bound."""
    if value is None or not math.isfinite(value * 1000):
        return "no finite number"
    return f"{math.ceil(value * 1000) / 1000:.3f}"


def down(value: float | None) -> str:
    """A lower bound on epsilon: three decimals, never more than the bound."""
    if value is None or not math.isfinite(value * 1000):
        return "no finite number"
    return f"{math.floor(value * 1000) / 1000:.3f}"


def stated(epsilon: Mapping[str, Any]) -> float | None:
    """The upper bound that a run states: the tightest proven one; None where it is infinite.

    Args:
        epsilon: of a record, by accountant.
    """
    value: float | None = epsilon[_accountant(epsilon)]
    return value


def stated_by(epsilon: Mapping[str, Any]) -> str:
    """What computed `stated`, in words."""
    return _STATED[_accountant(epsilon)]


def _accountant(epsilon: Mapping[str, Any]) -> str:
    return "rdp" if epsilon.get("pld") is None else "pld"


def weakness(epsilon: float) -> list[str]:
    """A sentence on an epsilon that bounds little; none on others.

    Args:
        epsilon: that the statement gives.
    """
    if epsilon <= _REASONABLE:
        return []
    odds = f"by a factor of {math.exp(epsilon):.2g}" if epsilon < 100 else "beyond all measure"
    return [
        f"epsilon is {up(epsilon)}, so that odds may change {odds}: above {_REASONABLE} a bound "
        "promises little by itself (Ponomareva et al. 2023)"
    ]


def delta(value: float) -> str:
    """Delta with three significant digits, never less than it is: 7.42402e-06 is 7.43e-06."""
    if value <= 0:
        return f"{value:g}"
    # In decimal, where 8e-06 is what was typed and not a number just above or below.
    exact = Decimal(repr(float(value)))
    unit = Decimal(1).scaleb(exact.adjusted() - 2)
    return f"{float(exact.quantize(unit, rounding=ROUND_CEILING)):.3g}"


def bounds(epsilon: Mapping[str, Any], shuffled: bool) -> list[tuple[str, str]]:
    """Epsilon by the accountants that bound it, each under its name.

    Args:
        epsilon: of a record, by accountant.
        shuffled: whether batches were shuffled, so that no number is a bound.

    Returns:
        PLD and PRV only where they were computed: of a selection among runs only RDP is known.
    """
    found = []
    if epsilon.get("pld") is not None:
        found.append((f"Epsilon by PLD ({kind('pld', shuffled)})", up(epsilon["pld"])))
    found.append((f"Epsilon by RDP ({kind('rdp', shuffled)})", up(epsilon.get("rdp"))))
    if epsilon.get("prv"):
        found.append((f"Epsilon by PRV ({kind('prv', shuffled)})", up(epsilon["prv"].get("upper"))))
    return found


def kind(accountant: str, shuffled: bool) -> str:
    """What the epsilon of ``pld`` or ``rdp``, or the upper one of ``prv``, is a bound for.

    Args:
        accountant: one of the three.
        shuffled: see `bounds`.
    """
    return "for Poisson sampling, not a bound here" if shuffled else _KINDS[accountant]


def warnings(mechanism: Mapping[str, Any], noise_seed: int | None) -> list[str]:
    """What voids the guarantee, or some of it, as Markdown paragraphs to stand above the figures.

    Args:
        mechanism: of a record.
        noise_seed: the explicit seed of the noise, if there was one.
    """
    said = []
    if mechanism.get("sampling") == "shuffle":
        said.append(f"> **Mind:** {SHUFFLED} The numbers below are not proven for this run.")
    if noise_seed is not None:
        said.append(
            "> **Warning: the noise came from an explicit seed.** Anyone who knows the seed, the "
            "code and the parts that do not depend on the data can recompute the noise and remove "
            "it. That is fine for research on public data, not for a release of private data: "
            "train again without a noise seed."
        )
    return said


def base_model(path: str) -> str:
    """A model's name on the hub, or the last component of its folder: no other folder is told."""
    folder = Path(path).expanduser()
    return folder.resolve().name if folder.is_absolute() or folder.is_dir() else path


def clock(seconds: float | None) -> str:
    """``h:mm:ss``."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
