"""Peaks of memory in the backward, counted for ViT-large (Bu et al. 2023, Fact 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dpft.reproduce.claims.comparison import Comparison
from dpft.reproduce.claims.computed import computed, shown
from dpft.reproduce.figures.memory import Layer, each, peak, peaks, uniform, vit

Groups = Sequence[tuple[int, int]]

# Numbers of groups that divide 24 blocks.
_UNIFORM = (2, 3, 4, 6, 12, 24)


def formula_of_peaks() -> list[Comparison]:
    """Equation 8 as printed, which leaves out each group's ends, against a count with them."""
    layers = vit(1024, 24)
    found = []
    for name, groups in _groupings(layers).items():
        counted = max(peaks(layers, groups))
        ratio = max(as_printed(layers, groups)) / counted
        found.append(
            computed(
                f"highest peak of ViT-large, {name}: formula to count",
                ratio,
                0.97,
                1.03,
                f"{ratio:.4f} ({counted:,} numbers a record)",
            )
        )
    return found


def where_memory_peaks() -> list[Comparison]:
    """Which group peaks, and how layer-wise clipping compares to none (section 6.1)."""
    layers = vit(1024, 24)
    groupings = _groupings(layers)
    found = []
    for name, groups in list(groupings.items())[1:]:
        heights = peaks(layers, groups)
        ratio = heights[-1] / max(heights)
        what = f"peak of the group processed first to the highest, {name}"
        found.append(computed(what, ratio, 0.99, None, f"{ratio:.4f}"))
    plain = peak(layers, None)
    highest = [peak(layers, groups) / plain for groups in groupings.values()]
    return [
        *found,
        computed("highest peak, one group a layer to non-private", highest[-1], 0.95, 1.05),
        shown(
            f"highest peak to non-private for {', '.join(groupings)}",
            all(coarse > fine for coarse, fine in pairwise(highest)),
            "falls as groups become more",
            ", ".join(f"{one:.3f}" for one in highest),
        ),
    ]


def as_printed(layers: Sequence[Layer], groups: Groups) -> list[int]:
    """Equation 8: inputs of layers below a group's last, output gradients between its ends."""
    return [
        sum(one.T * one.d for one in layers[: last - 1])
        + sum(one.T * one.p for one in layers[first + 1 : last - 1])
        for first, last in groups
    ]


def _groupings(layers: Sequence[Layer]) -> dict[str, Groups]:
    """From one group to one a layer."""
    several = {f"{count} groups": uniform(layers, count) for count in _UNIFORM}
    return {"one group": ((0, len(layers)),), **several, "one group a layer": each(layers)}
