"""What an epsilon and a delta say, in words, for people who never read a paper on privacy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpft.privacy.rounding import delta as shown_delta
from dpft.privacy.rounding import three_digits_down, three_digits_up, up
from dpft.privacy.spec import LARGE_DELTA, SMALL_DELTA

if TYPE_CHECKING:
    from dpft.privacy.guarantee import Guarantee

# Epsilons up to these are strong and reasonable (Ponomareva et al., How to DP-fy ML, 2023, 5.2).
STRONG, REASONABLE = 1.0, 10.0
# Beyond it no sentence on chances says anything.
VACUOUS = 30.0
_GRADES = ("strong", "reasonable", "weak", "none")


def weakness(epsilon: float | None) -> list[str]:
    """A sentence on an epsilon that bounds little; none on others."""
    if epsilon is None or epsilon <= REASONABLE:
        return []
    odds = f"by a factor of {math.exp(epsilon):.2g}" if epsilon < 100 else "beyond all measure"
    return [
        f"epsilon is {up(epsilon)}, so that odds may change {odds}: above {REASONABLE:g} a bound "
        "promises little by itself (Ponomareva et al. 2023)"
    ]


def strength(epsilon: float | None, at: float, size: int) -> str:
    """Return the weaker grade of epsilon and delta: ``strong``, ``reasonable``, ``weak``, ``none``.

    At a delta of 1/N, N units being the ``size``, publishing one random record satisfies the
    definition (Dwork & Roth 2014, 2.3). The limits below it are dpft's own.
    """
    if epsilon is None or at >= 1 / size:
        return "none"
    large = (at > SMALL_DELTA or at > 1 / (10 * size)) + (at > LARGE_DELTA)
    return _GRADES[max((epsilon > STRONG) + (epsilon > REASONABLE), large)]


def verdict(given: Guarantee) -> str:
    """Return one sentence on epsilon and delta together, which precedes all figures.

    Empty where they guarantee nothing, or not against everybody.
    """
    if given.voided_by or given.strength == "none" or given.delta is None:
        return ""
    return (
        f"Epsilon is at most {up(given.stated)} and delta {shown_delta(given.delta)}, 1 in "
        f"{math.floor(round(1 / given.delta, 6)):,}, for each {given.noun}: a {given.strength} "
        "bound."
    )


def meaning(epsilon: float | None, at: float, noun: str) -> str:
    """What epsilon and delta mean, in two or three sentences.

    Factor and chance are rounded up, so that no digit promises more than was computed.

    Args:
        epsilon: an upper bound; None: there is none.
        at: delta.
        noun: of one unit, such as ``record``.
    """
    if epsilon is None:
        return "There is no finite epsilon, so nothing is guaranteed."
    if epsilon > VACUOUS:
        return (
            f"With an epsilon of {up(epsilon)}, the bound on what the model reveals about a {noun} "
            "is so loose that nothing follows from it."
        )
    factor, sure = odds(epsilon)
    can = "can hardly tell" if epsilon <= STRONG else "is limited in telling"
    text = (
        f"Whoever has the trained model {can} whether any one {noun} was used: whatever they "
        f"conclude, the chances of concluding it with and without that {noun} differ by a factor "
        f"of at most {factor} (e to the power of epsilon), but for a remainder of delta = "
        f"{shown_delta(at)}. Delta aside, somebody to whom it was an even chance that a certain "
        f"{noun} was used can become at most {sure}% sure."
    )
    if epsilon > STRONG:
        text += (
            " That is the worst case. Known attacks do far worse than the bound allows, which is "
            "experience and no proof."
        )
    return text


def odds(epsilon: float) -> tuple[str, str]:
    """What a finite epsilon bounds, as text, rounded up.

    Args:
        epsilon: an upper bound.

    Returns:
        The factor by which any event's probabilities differ, delta aside, and how sure, in percent,
        somebody can become of what was an even chance.
    """
    factor = math.exp(epsilon)
    return three_digits_up(factor), f"{100 - three_digits_down(100 / (1 + factor)):.6g}"
