"""``conf/clip``: a clipping style's parts, checked against each other.

A style is a name for a plan, groups, and fixed or adaptive thresholds (`dpft.privacy.spec`). The
name follows from the parts. It stands in run names and tables.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any

from dpft.config import plugins
from dpft.config.checks import Bounds, Count, Positive, Share, one_of
from dpft.config.errors import ConfigError
from dpft.privacy.spec import (
    CLIP_FUNCTIONS,
    PARTITIONS,
    PLANS,
    STYLES,
    Allocation,
    Partition,
    Style,
    misfit,
    style_of,
)

_QUANTILE = ("quantile", "quantile_lr", "quantile_budget", "quantile_noise", "rescale")


@dataclass(frozen=True)
class Clip:
    """How per-example gradients are clipped, and where noise and budget go.

    Attributes:
        style: follows from ``plan``, ``groups`` and ``adaptive``. Where they are left out, they are
            those of the style.
        plan: how the sum is formed.
        groups: what is clipped together: a partition, or another package's style.
        threshold: ``C``; each of ``K`` groups is clipped to ``C/sqrt(K)``. Adaptive: what every
            group's estimate begins with.
        thresholds: one number per group instead.
        clip_function: ``abadi``, ``min(1, C/n)``; ``automatic``, ``C/(n + 0.01)``; or another
            package's.
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

    style: str | None = None
    plan: str | None = None
    groups: str | None = None
    threshold: Positive | None = None
    thresholds: Annotated[tuple[float, ...], Bounds(above=0)] | None = None
    clip_function: str = "abadi"
    count: Count | None = None
    boundary: Count | None = None
    patterns: tuple[Any, ...] | None = None
    adaptive: bool | None = None
    quantile: Share | None = None
    quantile_lr: Positive | None = None
    quantile_budget: Share | None = None
    quantile_noise: Positive | None = None
    rescale: Positive | None = None
    allocation: Allocation = "global"

    def __post_init__(self) -> None:
        self._name_style()
        if not self.private:
            names = ("threshold", "thresholds", *_QUANTILE)
            self._without_effect(names, "without clipping", "clip=bk")
            return
        self._check_groups()
        self._check_thresholds()
        self._check_quantiles()

    @property
    def private(self) -> bool:
        """Whether gradients are clipped at all."""
        return self.plan != "none"

    @property
    def own_groups(self) -> bool:
        """Whether another package's rule groups the parameters."""
        return self.groups not in PARTITIONS

    @property
    def partition(self) -> Partition:
        """How parameters are grouped, but for `own_groups`.

        Raises:
            ValueError: for settings that these groups do not take.
        """
        return Partition(str(self.groups), self.count, self.boundary, self.patterns)

    def _name_style(self) -> None:
        """The parts from the style where they are left out, and the style from the parts."""
        if self.style is None and self.plan is None:
            raise ConfigError("neither clip.plan nor clip.style is set; type clip=bk")
        usual = Style("none", "flat") if self.style is None else _style(self.style)
        for name, value in usual._asdict().items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        one_of("clip.plan", str(self.plan), PLANS)
        _known("clip.groups", str(self.groups), PARTITIONS, "styles")
        _known("clip.clip_function", self.clip_function, CLIP_FUNCTIONS, "clip_functions")
        parts = Style(self.plan, str(self.groups), bool(self.adaptive))  # type: ignore[arg-type]
        reason, style = misfit(parts), style_of(parts)
        if reason is not None:
            raise ConfigError(
                f"clip.plan is {self.plan} with clip.groups={self.groups}: {reason}; type "
                f"{_typed(style)}"
            )
        if self.style not in (None, style):
            raise ConfigError(
                f"clip.style is {self.style}, but plan {self.plan}, groups {self.groups} and "
                f"{'adaptive' if self.adaptive else 'fixed'} thresholds make the style {style}; "
                f"type {_typed(style, self.plan)}"
            )
        object.__setattr__(self, "style", style)

    def _check_groups(self) -> None:
        if self.own_groups:
            names = ("count", "boundary", "patterns", "thresholds")
            self._without_effect(names, f"with clip.groups={self.groups}", "clip=custom")
            return
        try:
            object.__setattr__(self, "patterns", self.partition.patterns)
        except ValueError as error:
            raise ConfigError(
                f"clip.groups is {self.groups}: {error}; its settings are typed as ++clip.count=4"
            ) from error

    def _check_thresholds(self) -> None:
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


def _known(name: str, value: str, known: Collection[str], kind: str) -> None:
    """Refuse what neither dpft has nor an installed package."""
    if value not in known:
        one_of(name, value, [*known, *plugins.names(kind)])


def _style(name: str) -> Style:
    """The parts of a style, also of one whose groups are another package's."""
    if name in STYLES:
        return STYLES[name]
    groups = name.removesuffix("_adaptive")
    if groups not in plugins.names("styles"):
        one_of("clip.style", name, [*STYLES, *plugins.names("styles")])
    return Style("fused", groups, adaptive=groups != name)


def _typed(style: str, plan: str | None = None) -> str:
    """What to type for a style: a shipped choice, and what it leaves open."""
    groups = style.removesuffix("_adaptive")
    typed = f"clip={style}"
    if style != groups and groups not in ("flat", "per_layer", "per_device"):
        typed = f"clip=per_layer_adaptive clip.groups={groups}"
    return typed if plan in (None, _style(style).plan) else f"{typed} clip.plan={plan}"
