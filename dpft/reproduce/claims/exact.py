"""What follows from counting alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpft.reproduce.claims.comparison import Comparison
from dpft.reproduce.claims.computed import computed, shown

# GPT-2 small: vocabulary, width, positions.
_VOCABULARY, _WIDTH, _WINDOW = 50_257, 768, 1024


def embedding_memory() -> list[Comparison]:
    """``B p d`` for formed gradients against Gram matrices (Li et al. 2022, section 4.2)."""
    formed = _VOCABULARY * _WIDTH
    found = []
    for length, matrices in ((_WINDOW, 1), (_WINDOW, 2), (100, 2)):
        ratio = formed / (matrices * length**2)
        held = "one T by T matrix" if matrices == 1 else "both T by T matrices"
        found.append(
            computed(
                f"memory of GPT-2's embedding, formed gradient to {held}, T = {length}",
                ratio,
                22,
                None,
                f"{formed:,} to {matrices * length**2:,} numbers a record: {ratio:.1f}",
            )
        )
    return found


def bell_numbers() -> list[Comparison]:
    """How many ways there are to group 9 and 18 layers (Bu et al. 2023, section 5)."""
    return [
        computed(
            f"log10 of the ways to group {layers} layers",
            math.log10(bell(layers)),
            told - 0.05,
            told + 0.05,
            f"{math.log10(bell(layers)):.3f} ({bell(layers):,} ways); printed {told}",
        )
        for layers, told in ((9, 4.3), (18, 11.8))
    ]


def bell(n: int) -> int:
    """The number of partitions of a set of ``n``, by the Bell triangle.

    >>> [bell(n) for n in range(1, 6)]
    [1, 2, 5, 15, 52]
    """
    row = [1]
    for _ in range(n - 1):
        following = [row[-1]]
        for value in row:
            following.append(following[-1] + value)
        row = following
    return row[-1]


def clippings_not_nested() -> list[Comparison]:
    """Theorem 2 of Bu et al. 2023: two gradients over two layers of one number each, ``R = 4``.

    Clipping all layers together scales the first to norm 4, so that layer-wise clipping would need
    its first threshold at what is left of it; with that threshold the second gradient comes out
    otherwise. Shown with the paper's example and with one whose second gradient stays unclipped, as
    the proof wants it: the paper's has norm 6.
    """
    found = []
    for name, second in (("the paper's example", (6.0, 0.0)), ("norm below R", (3.5, 0.0))):
        first = (3.0, 4.0)
        together = [_clip_together(g, 4.0) for g in (first, second)]
        # Layer-wise clipping only ever shortens a part to its threshold, so this one is forced.
        needed = together[0][0]
        alone = min(second[0], needed)
        found.append(
            shown(
                f"thresholds per layer that do what one threshold does ({name}: g = [3, 4] and "
                f"[{second[0]:g}, 0], R = 4)",
                not math.isclose(alone, together[1][0]),
                "there are none",
                f"the first gradient needs R1 = {needed:g}, which leaves {alone:g} of the second's "
                f"first part instead of {together[1][0]:g}",
            )
        )
    return found


def _clip_together(gradient: Sequence[float], threshold: float) -> list[float]:
    factor = min(1.0, threshold / math.hypot(*gradient))
    return [factor * part for part in gradient]


def bound_rises_with_groups() -> list[Comparison]:
    """The factor ``(20 xi + sqrt(M)/5) M^(1/4)`` of Theorem 1 (Bu et al. 2023), whatever ``xi``."""
    groups, found = (1, 2, 12, 76, 149), []
    for xi in (0.0, 1.0, 100.0):
        factors = [(20 * xi + math.sqrt(m) / 5) * m**0.25 for m in groups]
        found.append(
            shown(
                f"leading factor of the bound at xi = {xi:g} for {', '.join(map(str, groups))} "
                "groups",
                sorted(set(factors)) == factors,
                "rises",
                ", ".join(f"{factor:.3g}" for factor in factors),
            )
        )
    return found
