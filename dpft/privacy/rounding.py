"""Figures of a guarantee as text: no digit promises more than was computed. Imports no torch."""

import math
from decimal import ROUND_CEILING, Decimal


def number(value: float | None) -> str:
    """Return four significant digits, to the nearest: for what promises nothing."""
    return "no finite number" if value is None else f"{value:.4g}"


def up(value: float | None, decimals: int = 3) -> str:
    """Return an upper bound on epsilon, never less than the bound."""
    scale = 10**decimals
    if value is None or not math.isfinite(value * scale):
        return "no finite number"
    return f"{math.ceil(value * scale) / scale:.{decimals}f}"


def down(value: float | None) -> str:
    """Return a lower bound on epsilon: three decimals, never more than the bound."""
    if value is None or not math.isfinite(value * 1000):
        return "no finite number"
    return f"{math.floor(value * 1000) / 1000:.3f}"


def percent(share: float) -> str:
    """Return a share as it was typed: 0.999 is 99.9%, never a certain 100%."""
    return f"{100 * share:.12g}%"


def delta(value: float) -> str:
    """Return delta with three significant digits, never less than it is."""
    return f"{float(three_digits(value, ROUND_CEILING)):.3g}" if value > 0 else f"{value:g}"


def three_digits(value: float, rounding: str) -> Decimal:
    """Return a number above 0 with three significant digits, rounded as `decimal` names it."""
    # In decimal, where 8e-06 is what was typed and not a number just above or below.
    exact = Decimal(repr(float(value)))
    return exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), rounding=rounding)
