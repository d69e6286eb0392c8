"""``conf/clip``: a clipping style and its parts, checked against each other.

A style is a name for a choice of plan, groups and fixed or adaptive thresholds. The parts decide
what runs; the name stands in run names and tables, so it must be that of the parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpft.config.checks import HUGE, one_of, positive
from dpft.config.errors import ConfigError

# As in dpft.privacy, which is not imported here: it takes a second, and `dpft --help` none.
PLANS = ("none", "materialised", "lee_kifer", "ghost", "bk", "fused")
PARTITIONS = (
    "flat",
    "per_layer",
    "per_param",
    "block_wise",
    "uniform",
    "two_group",
    "by_type",
    "per_device",
    "custom",
)
ALLOCATIONS = ("global", "equal_budget", "weighted")
_TWO_BACKWARDS = ("lee_kifer", "ghost")
# With one fixed threshold, styles are named by how the sum is formed.
_FLAT = {"none": "none", "materialised": "flat"} | {p: p for p in (*_TWO_BACKWARDS, "bk")}
STYLES = (*_FLAT.values(), *PARTITIONS[1:], *(f"{name}_adaptive" for name in PARTITIONS))
_QUANTILE = ("quantile", "quantile_lr", "quantile_budget", "quantile_noise", "rescale")
_PATTERNS = '\'[["*.0.*"],["*.1.*"]]\''
_GROUPING = {
    "uniform": {"count": "4"},
    "two_group": {"boundary": "6"},
    "per_device": {"count": "4", "patterns": _PATTERNS},
    "custom": {"patterns": _PATTERNS},
}


def parts_of(style: str) -> tuple[str, str, bool]:
    """Plan, groups, and whether thresholds adapt, where a config names nothing but ``style``."""
    for plan, name in _FLAT.items():
        if style == name:
            return plan, "flat", False
    groups = style.removesuffix("_adaptive")
    return "bk" if groups == "flat" else "fused", groups, groups != style


@dataclass(frozen=True)
class Clip:
    """How per-example gradients are clipped, and where noise and budget go.

    Attributes:
        style: the name of the choice, as in run names and tables.
        plan: how the sum is formed.
        groups: what is clipped together.
        threshold: ``C``; each of ``K`` groups is clipped to ``C/sqrt(K)``. Adaptive: what every
            group's estimate begins with.
        thresholds: one number per group instead.
        clip_function: ``abadi``, ``min(1, C/n)``, or ``automatic``, ``C/(n + 0.01)``.
        count: number of groups (``uniform``) or of devices (``per_device``).
        boundary: blocks in the first group (``two_group``).
        patterns: of parameter names, a list per group (``custom``, ``per_device``).
        adaptive: whether thresholds follow private quantiles of the norms.
        quantile: ``q``, the share of records that should not be clipped.
        quantile_lr: ``eta`` of the geometric update.
        quantile_budget: ``r``, the share of the budget spent on quantiles.
        quantile_noise: ``sigma_b`` instead of ``r``.
        rescale: ``C`` that the thresholds together are scaled to; None: they are the quantiles.
        allocation: how noise is spread over the groups.
    """

    style: str
    plan: str | None = None
    groups: str | None = None
    threshold: float | None = None
    thresholds: tuple[float, ...] | None = None
    clip_function: str = "abadi"
    count: int | None = None
    boundary: int | None = None
    patterns: tuple[tuple[str, ...], ...] | None = None
    adaptive: bool | None = None
    quantile: float | None = None
    quantile_lr: float | None = None
    quantile_budget: float | None = None
    quantile_noise: float | None = None
    rescale: float | None = None
    allocation: str = "global"

    def __post_init__(self) -> None:
        one_of("clip.style", self.style, STYLES)
        plan, groups, adaptive = parts_of(self.style)
        for name, value in (("plan", plan), ("groups", groups), ("adaptive", adaptive)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        one_of("clip.plan", str(self.plan), PLANS)
        one_of("clip.groups", str(self.groups), PARTITIONS)
        one_of("clip.clip_function", self.clip_function, ("abadi", "automatic"))
        one_of("clip.allocation", self.allocation, ALLOCATIONS)
        if self.plan == "none":
            self._check_style()
            names = ("threshold", "thresholds", *_QUANTILE)
            self._without_effect(names, "without clipping", "clip=bk")
            return
        self._check_plan()
        self._check_style()
        self._check_groups()
        self._check_thresholds()
        self._check_quantiles()

    @property
    def private(self) -> bool:
        """Whether gradients are clipped at all."""
        return self.plan != "none"

    def _own_style(self) -> str:
        if self.adaptive:
            return f"{self.groups}_adaptive"
        return _FLAT.get(str(self.plan), "bk") if self.groups == "flat" else str(self.groups)

    def _check_plan(self) -> None:
        style = self._own_style()
        if self.plan in _TWO_BACKWARDS and self.groups != "flat":
            raise ConfigError(
                f"clip.plan is {self.plan} with clip.groups={self.groups}: two backwards can "
                f"reweight by one factor per record only; type {_typed(style, 'fused')}, or "
                f"{_typed(style, 'bk')}"
            )
        if self.plan == "fused" and self.groups == "flat":
            raise ConfigError(
                "clip.plan is fused with clip.groups=flat: a single group is known only when the "
                f"backward ends; type {_typed(style, 'bk')}"
            )

    def _check_style(self) -> None:
        style = self._own_style()
        if self.style != style:
            raise ConfigError(
                f"clip.style is {self.style}, but plan {self.plan}, groups {self.groups} and "
                f"{'adaptive' if self.adaptive else 'fixed'} thresholds make the style {style}; "
                f"type {_typed(style, str(self.plan))}"
            )

    def _check_groups(self) -> None:
        takes = _GROUPING.get(str(self.groups), {})
        given = [n for n in ("count", "boundary", "patterns") if getattr(self, n) is not None]
        if set(given) - set(takes):
            raise ConfigError(
                f"clip.{given[0]} is {getattr(self, given[0])}, which has no effect on "
                f"clip.groups={self.groups}; leave it out, or type {_typed(self._own_style())}"
            )
        if takes and len(given) != 1:
            expected = " or ".join(f"++clip.{name}={value}" for name, value in takes.items())
            raise ConfigError(
                f"clip.groups is {self.groups} with {' and '.join(given) or 'no setting'}; "
                f"expected exactly one: type {expected}"
            )
        for name in ("count", "boundary"):
            positive(f"clip.{name}", getattr(self, name))
        groups: tuple[Any, ...] = self.patterns or ()
        if any(isinstance(g, str) or not all(isinstance(p, str) for p in g) for g in groups):
            raise ConfigError(
                f"clip.patterns is {self.patterns}; expected a list of patterns per group: type "
                f"clip.patterns={_PATTERNS}"
            )
        if self.patterns is not None:
            object.__setattr__(self, "patterns", tuple(tuple(group) for group in groups))

    def _check_thresholds(self) -> None:
        positive("clip.threshold", self.threshold, at_most=HUGE)
        if self.threshold is None and self.thresholds is None:
            raise ConfigError("clip.threshold is null; expected a number > 0 for a private run")
        if self.thresholds is not None and self.threshold is not None:
            raise ConfigError(
                f"clip.threshold is {self.threshold} beside clip.thresholds; expected one of them: "
                "type clip.threshold=null for one threshold per group"
            )
        if self.thresholds is not None and self.groups == "flat":
            raise ConfigError(
                "clip.thresholds is set, but all parameters are one group; type clip.threshold=0.1"
            )
        for value in self.thresholds or ():
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ConfigError(
                    f"clip.thresholds holds {value!r}; expected numbers > 0, one per group"
                )
        if self.thresholds is not None:
            object.__setattr__(self, "thresholds", tuple(map(float, self.thresholds)))
        if self.groups == "flat" and self.allocation != "global":
            raise ConfigError(
                f"clip.allocation is {self.allocation}, which changes nothing for a single group; "
                "type clip.allocation=global, or choose groups, such as clip=per_layer"
            )

    def _check_quantiles(self) -> None:
        if not self.adaptive:
            choice = "flat_adaptive" if self.groups == "flat" else "per_layer_adaptive"
            self._without_effect(_QUANTILE, "while thresholds are fixed", f"clip={choice}")
            return
        for name, example in (("quantile", "0.5"), ("quantile_lr", "0.3")):
            if getattr(self, name) is None:
                raise ConfigError(
                    f"clip.{name} is null; expected a number for adaptive thresholds, for instance "
                    f"clip.{name}={example}"
                )
        for name in _QUANTILE:
            positive(f"clip.{name}", getattr(self, name))
        for name in ("quantile", "quantile_budget"):
            value = getattr(self, name)
            if value is not None and not value < 1:
                raise ConfigError(f"clip.{name} is {value}; expected a share between 0 and 1")
        if (self.quantile_budget is None) == (self.quantile_noise is None):
            raise ConfigError(
                f"clip.quantile_budget is {self.quantile_budget} and clip.quantile_noise is "
                f"{self.quantile_noise}; expected exactly one: type clip.quantile_budget=0.01 "
                "clip.quantile_noise=null, or the other way round"
            )
        if self.rescale is not None and self.groups == "flat":
            raise ConfigError(
                f"clip.rescale is {self.rescale} with a single group, which would keep its "
                f"threshold at that number; type clip=bk clip.threshold={self.rescale}"
            )

    def _without_effect(self, names: tuple[str, ...], when: str, choice: str) -> None:
        given = [f"clip.{name}" for name in names if getattr(self, name) is not None]
        if given:
            raise ConfigError(
                f"{', '.join(given)} would have no effect {when}; leave it out, or type {choice}"
            )


def _typed(style: str, plan: str | None = None) -> str:
    """What to type for a style: a shipped choice, and what it leaves open."""
    groups = style.removesuffix("_adaptive")
    typed = f"clip={style}"
    if style != groups and groups not in ("flat", "per_layer", "per_device"):
        typed = f"clip=per_layer_adaptive clip.groups={groups} clip.style={style}"
    return typed if plan in (None, parts_of(style)[0]) else f"{typed} clip.plan={plan}"
