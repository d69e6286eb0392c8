"""The vocabulary of private training: the names of its parts, and which of them fit together.

Settings, code and tables take their names from here. No torch: settings are checked before it is
loaded, which takes a second.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

Plan = Literal["none", "materialised", "lee_kifer", "ghost", "bk", "fused"]
PLANS: tuple[Plan, ...] = get_args(Plan)
"""The ways to form sums of clipped gradients, see `dpft.privacy.clipping.plans`."""

TWO_BACKWARDS: tuple[Plan, ...] = ("lee_kifer", "ghost")
"""Plans that reweight the losses: by one factor per record, so for one group only."""

ClipFunction = Literal["abadi", "automatic"]
CLIP_FUNCTIONS: tuple[ClipFunction, ...] = get_args(ClipFunction)
"""From a norm to a factor, see `dpft.privacy.clipping.groups`."""

Allocation = Literal["global", "equal_budget", "weighted"]
ALLOCATIONS: tuple[Allocation, ...] = get_args(Allocation)
"""The ways to spread noise over groups, see `dpft.privacy.mechanism.allocate`."""

Accountant = Literal["pld", "rdp"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)
"""That calibrate the noise, see `dpft.privacy.accounting`."""

Sampling = Literal["poisson", "truncated_poisson", "shuffle"]
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)
"""See `dpft.privacy.sampling`."""

PARTITIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "flat": (),
        "per_layer": (),
        "per_param": (),
        "block_wise": (),
        "uniform": ("count",),
        "two_group": ("boundary",),
        "by_type": (),
        "per_device": ("count", "patterns"),
        "custom": ("patterns",),
    }
)
"""The partitions into groups, see `dpft.privacy.clipping.groups`, each with its settings,
of which exactly one is given."""

SMALL_DELTA, LARGE_DELTA = 1e-5, 1e-4
"""Deltas up to these may leave a bound strong and reasonable, see `dpft.privacy.guarantee`."""


# Thresholds are between these. In float32 the squares of smaller gradients vanish or lose digits,
# so that norms come out too small and more than C passes. Where a device flushes what is below
# 1.2e-38 to zero, the squared norm of d numbers is off by up to d times that: for a billion, by
# 1e-5 of C^2 at 1e-12. The square of a norm from 1.8e19 on overflows, and its record is dropped.
LOWEST, HIGHEST = 1e-12, 1e12


def check_threshold(what: str, threshold: float) -> None:
    """Raise ValueError unless float32 can hold the squares of norms near a threshold."""
    if not LOWEST <= threshold <= HIGHEST:
        raise ValueError(
            f"clipping threshold of {what} is {threshold}; expected {LOWEST:g} to {HIGHEST:g}, "
            "for instance threshold=0.1: in float32 squares of smaller gradients vanish, and of "
            "larger ones overflow"
        )


def sensitivity(thresholds: Sequence[float]) -> float:
    """L2 sensitivity of the sum of clipped gradients under adding or removing one record."""
    return math.sqrt(math.fsum(c * c for c in thresholds))


def default_delta(size: int, published: bool) -> float:
    """Return delta where none is given: ``1/(2N)`` in the papers' tasks (Li et al. 2022).

    Own data have one that does not weaken the verdict on epsilon. For epsilon 3 it costs 5% more
    noise than ``1/(2N)`` where N is 67,349 (SST-2), and 35% more where it is 367.
    """
    return 1 / (2 * size) if published else min(SMALL_DELTA, 1 / (10 * size))


_EXAMPLES = {"count": "4", "boundary": "6", "patterns": '[["*.0.*"],["*.1.*"]]'}


@dataclass(frozen=True)
class Partition:
    """A rule that groups the trainable parameters.

    Attributes:
        name: one of `PARTITIONS`.
        count: ``uniform``: the number of groups; ``per_device``: the number of devices.
        boundary: ``two_group``: the number of blocks in the first group.
        patterns: ``custom`` and ``per_device``: shell-style patterns on parameter names, one tuple
            for each group. ``*`` crosses dots: write ``h.1.*`` rather than ``h.1*``.
    """

    name: str
    count: int | None = None
    boundary: int | None = None
    patterns: tuple[tuple[str, ...], ...] | None = None

    def __post_init__(self) -> None:
        if self.name not in PARTITIONS:
            raise ValueError(f"partition is {self.name!r}; expected one of {', '.join(PARTITIONS)}")
        takes = PARTITIONS[self.name]
        given = [key for key in _EXAMPLES if getattr(self, key) is not None]
        if len(given) != min(1, len(takes)) or not set(given) <= set(takes):
            got = ", ".join(f"{key}={getattr(self, key)!r}" for key in given) or "no setting"
            expected = " or else ".join(f"{k}={_EXAMPLES[k]}" for k in takes) or "no setting"
            raise ValueError(f"partition {self.name!r} got {got}; expected {expected}")
        for key in ("count", "boundary"):
            value: Any = getattr(self, key)
            if value is not None and (type(value) is not int or value < 1):
                example = f"{key}={_EXAMPLES[key]}"
                raise ValueError(f"{key} is {value!r}; expected an integer >= 1: {example}")
        if self.patterns is not None:
            object.__setattr__(self, "patterns", _tuples(self.patterns))


def _tuples(patterns: Any) -> tuple[tuple[str, ...], ...]:
    """The patterns as tuples of tuples, also where a config file's lists were given."""
    groups = [] if isinstance(patterns, str) else list(patterns)
    known = [not isinstance(g, str) and g and all(isinstance(p, str) for p in g) for g in groups]
    if not known or not all(known):
        raise ValueError(
            f"patterns are {patterns!r}; expected a list of patterns for each group, for instance "
            f"patterns={_EXAMPLES['patterns']}"
        )
    return tuple(tuple(group) for group in groups)


class Style(NamedTuple):
    """The parts that the name of a clipping style denotes."""

    plan: Plan
    groups: str
    adaptive: bool = False


STYLES: Mapping[str, Style] = MappingProxyType(
    {
        **{plan: Style(plan, "flat") for plan in PLANS if plan != "fused"},
        **{name: Style("fused", name) for name in PARTITIONS if name != "flat"},
        **{
            f"{name}_adaptive": Style("bk" if name == "flat" else "fused", name, adaptive=True)
            for name in PARTITIONS
        },
    }
)
"""Every style with the parts that it has unless others are given. With one fixed threshold the plan
names it; groups name it whatever the plan, since all plans form the same sums."""


def style_of(parts: Style) -> str:
    """Return the name of a plan, groups, and fixed or adaptive thresholds."""
    if parts.plan == "none":
        return "none"
    groups = parts.groups.rpartition(":")[2]  # of an import path the name
    if parts.adaptive:
        return f"{groups}_adaptive"
    if groups != "flat":
        return groups
    return "bk" if parts.plan == "fused" else parts.plan


def style_in(clip: Mapping[str, Any]) -> str:
    """Return the style of the group ``clip`` of a stored config."""
    groups = str(clip.get("groups") or "flat")
    return style_of(Style(clip["plan"], groups, bool(clip.get("adaptive"))))


def misfit(parts: Style) -> str | None:
    """Why a plan cannot clip these groups; None where it can."""
    if parts.plan == "none" and (parts.groups != "flat" or parts.adaptive):
        return "nothing is clipped"
    if parts.plan in TWO_BACKWARDS and parts.groups != "flat":
        return "two backwards can reweight by one factor per record only"
    if parts.plan == "fused" and parts.groups == "flat":
        return "a single group is known only when the backward ends"
    return None


def fitting_batch(records: int) -> int:
    """A batch size to suggest for so few records: a quarter of them, down to a power of two."""
    return 1 << max(0, (records // 4).bit_length() - 1)
