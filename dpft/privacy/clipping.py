"""The clipper: sums of clipped per-example gradients, at nearly the cost of ordinary training.

Forward hooks keep each layer's input ``a`` and a handle on its output's place in the autograd
graph. ``torch.autograd.grad`` of the summed losses at those places yields every output gradient
``g`` without forming one weight gradient, while the parameters keep ``requires_grad=True``:
optimizers, checkpoints and adapters see an ordinary model. From ``(a, g)`` the layer rules compute
per-example norms, and one of these plans forms the sum:

========== ================================================================================
plan       how ``sum_i c_i G_i`` is formed
========== ================================================================================
none       not clipped: an ordinary backward (non-private training)
flat       per-example gradients are materialised, then weighted and summed (as Opacus does)
ghost      a second backward over the losses reweighted by ``c_i`` (Li et al. 2022)
bk         from the kept ``(a, g)``: one backward in all, book-keeping (Bu et al. 2023)
========== ================================================================================

All plans leave the same sum in ``.grad``, to float accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import torch
from torch import Tensor, nn

from dpft.privacy import groups as partitions
from dpft.privacy.capture import Call, Capture, find_sites
from dpft.privacy.groups import Group
from dpft.privacy.layers import (
    RULES,
    Rule,
    UnsupportedLayerError,
    Use,
    exact_squared_norm,
    joint_per_example,
    joint_squared_norm,
)
from dpft.privacy.verify import check_batch, verify_sums, verify_uses


def abadi(norms: Tensor, threshold: float) -> Tensor:
    """``min(1, C/n)`` (Abadi et al. 2016): gradients shorter than ``C`` pass unchanged."""
    return (threshold / norms).clamp(max=1.0)


def automatic(norms: Tensor, threshold: float) -> Tensor:
    """``C/(n + 0.01)`` (Bu et al. 2023, eq. 4, whose ``C`` is 1): no gradient exceeds ``C``."""
    return threshold / (norms + 0.01)


ClipFunction = Callable[[Tensor, float], Tensor]
CLIP_FUNCTIONS: Mapping[str, ClipFunction] = MappingProxyType(
    {"abadi": abadi, "automatic": automatic}
)

# A style is a named choice of plan (and, from the next milestone on, of groups and thresholds).
STYLES: Mapping[str, str] = MappingProxyType(
    {"none": "none", "flat": "flat", "ghost": "ghost", "bk": "bk"}
)


class Clipper:
    """Leaves the sum of clipped per-example gradients in ``.grad``. Built by `make_clipper`.

    Attributes:
        parameters: the trainable parameters by name; a tied parameter appears once.
        groups: the clipping groups; empty for ``none``.
        norms: per-example gradient norms of the last `backward`, shape ``(B, K)``.
        factors: the clip factors applied by the last `backward`, shape ``(B, K)``. A record whose
            gradient is not finite has factor 0: it contributes nothing.

    Guarantee: adding or removing one record changes the sum by at most `sensitivity` in L2 norm,
    provided that ``losses[i]`` depends on record ``i`` alone.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: str,
        parameters: Mapping[str, nn.Parameter],
        groups: Sequence[Group],
        clip_function: ClipFunction,
        rules: Mapping[str, Rule],
    ) -> None:
        self.plan = plan
        self.parameters = MappingProxyType(dict(parameters))
        self.groups = tuple(groups)
        self.norms = torch.empty(0, len(self.groups))
        self.factors = torch.empty(0, len(self.groups))
        self._clip_function = clip_function
        self._verified: set[tuple[str, ...]] = set()
        sites = {} if plan == "none" else find_sites(model, self.parameters, rules)
        self._capture = Capture(model, sites)

    @property
    def private(self) -> bool:
        return bool(self.groups)

    @property
    def thresholds(self) -> tuple[float, ...]:
        return tuple(group.threshold for group in self.groups)

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of what `backward` leaves in ``.grad``, infinite for ``none``."""
        return partitions.sensitivity(self.thresholds) if self.private else float("inf")

    def backward(self, losses: Tensor) -> None:
        """Add ``sum_i clip(g_i)`` to each parameter's ``.grad``.

        Args:
            losses: one loss per record, shape ``(B,)``; nothing may be summed or averaged across
                records. May be empty: then nothing is added.

        Raises:
            ValueError: if ``losses`` is not one-dimensional.
            UnsupportedLayerError: if a layer's batch cannot be told apart by record, or if a
                parameter is used in a way that was not captured.
        """
        if losses.dim() != 1:
            raise ValueError(
                f"losses have shape {tuple(losses.shape)}; expected one loss per record, shape "
                "(B,): use reduction='none' and reduce within each record only"
            )
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        calls = self._capture.take()
        self.norms = losses.new_empty(len(losses), len(self.groups))
        self.factors = self.norms.clone()
        if len(losses) == 0:
            return
        if not self.private:
            losses.sum().backward()
            return
        if not calls:
            raise UnsupportedLayerError(
                "no layer's forward was captured for these losses; expected the model to be called "
                "once per backward, with gradients enabled, after make_clipper"
            )
        self._clip(losses, self._collect(losses, calls))

    def _collect(self, losses: Tensor, calls: list[Call]) -> dict[str, list[Use]]:
        """The first backward: output gradients only, turned into uses by parameter name."""
        signature = tuple(call.name for call in calls)
        unknown = signature not in self._verified
        gradients = torch.autograd.grad(
            losses.sum(),
            [call.output for call in calls],
            retain_graph=unknown or self.plan == "ghost",
            allow_unused=True,
        )
        reached = [(call, g) for call, g in zip(calls, gradients, strict=True) if g is not None]
        uses: dict[str, list[Use]] = {}
        if unknown:
            verify_uses(losses, [call for call, _ in reached], self._capture.sites, self.parameters)
        with torch.no_grad():
            for call, g in reached:
                check_batch(call, len(losses), g)
                names = self._capture.sites[call.name].names
                for local, use in call.rule(call.module, call.a, g).items():
                    uses.setdefault(names[local], []).append(use)
        if unknown and bool(torch.isfinite(losses).all()):
            verify_sums(losses, uses, self.parameters)
            self._verified.add(signature)
        return uses

    @torch.no_grad()
    def _clip(self, losses: Tensor, uses: dict[str, list[Use]]) -> None:
        materialised: dict[str, Tensor] = {}
        if self.plan == "flat":
            materialised = {name: joint_per_example(joined) for name, joined in uses.items()}
        squared = self._squared_norms(uses, materialised, losses)
        # One record's overflow must not reach the others: it is silenced, exactly, and counted.
        dropped = ~torch.isfinite(squared).all(1) | ~torch.isfinite(losses)
        any_dropped = bool(dropped.any())
        self.norms = squared.clamp(min=0).sqrt()
        self.factors = torch.stack(
            [
                self._clip_function(self.norms[:, k], group.threshold)
                for k, group in enumerate(self.groups)
            ],
            dim=1,
        )
        if any_dropped:
            self.factors = self.factors.masked_fill(dropped[:, None], 0.0)
            uses = {name: [use.without(dropped) for use in joined] for name, joined in uses.items()}
            materialised = {}
        if self.plan == "ghost" and not any_dropped:
            uses.clear()
            with torch.enable_grad():
                reweighted = (losses * self.factors[:, 0]).sum()
                reweighted.backward(inputs=list(self.parameters.values()))
            return
        for k, group in enumerate(self.groups):
            weights = self.factors[:, k]
            for name in group.parameters:
                out = self.parameters[name].grad
                assert out is not None
                if name in materialised:
                    out += torch.tensordot(weights, materialised.pop(name), dims=1)
                    continue
                for use in uses.pop(name, []):
                    use.add_weighted_sum(weights, out)

    def _squared_norms(
        self, uses: Mapping[str, list[Use]], materialised: Mapping[str, Tensor], losses: Tensor
    ) -> Tensor:
        """Squared norms by group, ``(B, K)``."""
        found = {
            name: joint_squared_norm(u) for name, u in uses.items() if name not in materialised
        }
        values = {name: norm.value for name, norm in found.items()}
        values |= {name: g.flatten(1).square().sum(1) for name, g in materialised.items()}
        if found:
            doubtful = torch.stack([norm.doubtful() for norm in found.values()])
            if bool(doubtful.any()):  # one look for all layers: each costs a GPU a halt
                self._recompute(values, uses, dict(zip(found, doubtful, strict=True)))
        squared = losses.new_zeros(len(losses), len(self.groups))
        for k, group in enumerate(self.groups):
            for name in group.parameters:
                if name in values:
                    squared[:, k] += values[name]
        return squared

    def _recompute(
        self,
        values: dict[str, Tensor],
        uses: Mapping[str, list[Use]],
        doubtful: Mapping[str, Tensor],
    ) -> None:
        """Replace norms that cancellation may have understated, one record at a time."""
        for name, where in doubtful.items():
            for index in where.nonzero():
                rows = [use.rows(index) for use in uses[name]]
                values[name][index] = exact_squared_norm(rows).value

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within this context forward passes are not captured."""
        with self._capture.paused():
            yield

    def close(self) -> None:
        """Remove all hooks from the model."""
        self._capture.close()


def make_clipper(
    model: nn.Module,
    style: str,
    *,
    threshold: float | None = None,
    clip_function: str = "abadi",
    rules: Mapping[str, Rule] | None = None,
) -> Clipper:
    """Attach a clipper to ``model``.

    Args:
        model: any module; its parameters with ``requires_grad`` are trained, the others ignored.
            Freeze and tie before calling this.
        style: ``none``, ``flat``, ``ghost`` or ``bk``: what they leave in ``.grad`` is equal (but
            for ``none``, which does not clip), time and memory differ.
        threshold: clipping threshold ``C`` on the L2 norm of one record's gradient; needed unless
            ``style="none"``.
        clip_function: ``abadi`` or ``automatic``.
        rules: rules for further layer types, by qualified class name; they come before `RULES`.

    Returns:
        An object with ``backward(losses)`` and ``norms``.

    Raises:
        ValueError: for an unknown style or clip function, or a threshold that is missing or not
            positive.
        UnsupportedLayerError: naming every trainable parameter whose layer type has no rule.
    """
    if style not in STYLES:
        raise ValueError(f"clipping style is {style!r}; expected one of {', '.join(STYLES)}")
    if clip_function not in CLIP_FUNCTIONS:
        raise ValueError(
            f"clip function is {clip_function!r}; expected one of {', '.join(CLIP_FUNCTIONS)}"
        )
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ValueError("the model has no trainable parameter; expected at least one")
    groups: tuple[Group, ...] = ()
    if style != "none":
        low = [f"{n} ({p.dtype})" for n, p in parameters.items() if p.dtype.itemsize < 4]
        if low:
            raise UnsupportedLayerError(
                f"trainable parameters in half precision: {', '.join(low)}; expected float32 or "
                "float64, since norms and sums would be rounded by more than they may be"
            )
        if threshold is None:
            raise ValueError(f"style {style!r} needs a threshold, for instance threshold=0.1")
        groups = partitions.flat(list(parameters), threshold)
    return Clipper(
        model,
        STYLES[style],
        parameters,
        groups,
        CLIP_FUNCTIONS[clip_function],
        {**(rules or {}), **{k: v for k, v in RULES.items() if k not in (rules or {})}},
    )
