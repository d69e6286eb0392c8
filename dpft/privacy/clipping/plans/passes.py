"""One backward of one batch: from output gradients as they arrive to sums of clipped gradients.

Layers report their ``(a, g)`` in the order of the backward. A parameter is *complete* when all its
uses have arrived: its norm is taken then, over all uses together. A group is complete when all its
parameters are: its clip factors are known then. What is kept for the sum, and when the sum is
formed, is what the plans differ in:

============ ============================================ =======================================
plan         what a complete parameter keeps              when its group's sum is formed
============ ============================================ =======================================
materialised its per-example gradients (as Opacus)        at the end
bk           ``(a, g)``, or the gradients where smaller   at the end (Bu et al. 2023)
fused        the same                                     at once, inside the backward (He et al.
                                                          2022): output gradients are freed
ghost        nothing: norms from Gram matrices            a second backward (Li et al. 2022)
lee_kifer    nothing: norms from gradients, one by one    a second backward (Lee and Kifer 2021)
============ ============================================ =======================================
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.capture import Call
from dpft.privacy.clipping.checks.verify import check_batch
from dpft.privacy.clipping.groups import Group
from dpft.privacy.clipping.rules import (
    DirectUse,
    GramCache,
    SquaredNorm,
    UnsupportedLayerError,
    Use,
    exact_squared_norm,
    joint_per_example,
    joint_squared_norm,
)
from dpft.privacy.clipping.rules.base import floor
from dpft.privacy.clipping.rules.costs import MOMENT
from dpft.privacy.clipping.sites import check_joins
from dpft.privacy.precision import full_precision

PLANS = ("none", "materialised", "lee_kifer", "ghost", "bk", "fused")

TWO_BACKWARDS = ("lee_kifer", "ghost")


class Pass:
    """What is known of one batch while its backward runs.

    Args:
        plan: one of `PLANS` but ``none``.
        groups: the clipping groups.
        parameters: the trainable parameters, whose ``.grad`` receives the sums.
        losses: per-example losses, ``(B,)``.
        calls: all captured calls of the forward.
        factors_of: clip factors ``(B,)`` of group ``k`` from its norms ``(B,)``.
        rows: rows of the model's batch for each loss, next to each other.

    Attributes:
        forms: how each parameter's norms were computed, in words.
    """

    def __init__(
        self,
        plan: str,
        groups: Sequence[Group],
        parameters: Mapping[str, nn.Parameter],
        losses: Tensor,
        calls: Sequence[Call],
        factors_of: Callable[[int, Tensor], Tensor],
        rows: int = 1,
    ) -> None:
        self._plan = plan
        self._rows = rows
        self._groups = groups
        self._parameters = parameters
        self._factors_of = factors_of
        self._group_of = {name: k for k, group in enumerate(groups) for name in group.parameters}
        self._batch = len(losses)
        self._finite = torch.isfinite(losses.detach())
        self._outstanding = Counter(
            name for call in calls for name in call.site.names.values() if name in self._group_of
        )
        self._incomplete = Counter(self._group_of[name] for name in self._outstanding)
        self._uses: dict[str, list[Use]] = {}
        self._squared: dict[str, SquaredNorm] = {}
        self._done: set[int] = set()
        self._grams = GramCache()
        self._alone = {
            k: plan == "fused"
            and self._batch * sum(parameters[name].numel() for name in group.parameters) <= MOMENT
            for k, group in enumerate(groups)
        }
        self._all_finite = bool(self._finite.all())
        dtype = torch.promote_types(losses.dtype, torch.float32)
        nothing = losses.new_zeros(self._batch, dtype=dtype)
        self._norms: list[Tensor] = [nothing] * len(groups)
        self._factors: list[Tensor] = [nothing] * len(groups)
        self.forms: dict[str, str] = {}

    @torch.no_grad()
    @full_precision()
    def arrived(self, call: Call, g: Tensor) -> None:
        """Take in one call's output gradient; the call's input is forgotten."""
        call.hold()
        uses = uses_of(call, g, self._batch, self._rows)
        if self._plan in TWO_BACKWARDS:
            call.let_go()
        else:
            call.release()
        for name, use in uses:
            self._uses.setdefault(name, []).append(use)
        for name in call.site.names.values():
            self._outstanding[name] -= 1
            if not self._outstanding[name]:
                self._complete(name)

    @torch.no_grad()
    @full_precision()
    def finish(self) -> tuple[Tensor, Tensor]:
        """After the backward: complete what never arrived, and form the sums that remain.

        Returns:
            Norms and clip factors, ``(B, K)`` each. A record whose gradient in a group is not
            finite has factor 0 there.
        """
        for name, outstanding in self._outstanding.items():
            if outstanding:
                self._complete(name)
        for k in range(len(self._groups)):
            if k not in self._done:
                self._close(k)
        device = self._finite.device  # groups may lie on several
        norms = torch.stack([norms.to(device) for norms in self._norms], 1)
        return norms, torch.stack([factors.to(device) for factors in self._factors], 1)

    def _complete(self, name: str) -> None:
        """All uses of a parameter are here: take its norm, keep what its sum will need."""
        k = self._group_of[name]
        uses = self._uses.get(name)
        if uses:
            self._outstanding[name] = 0
            self._squared[name] = self._norm(name, uses, self._alone[k])
        self._incomplete[k] -= 1
        if self._plan == "fused" and not self._incomplete[k]:
            self._close(k)

    def _norm(self, name: str, uses: list[Use], alone: bool) -> SquaredNorm:
        if self._plan == "lee_kifer":
            return self._formed_norm(name, uses)
        if self._plan == "materialised":
            uses[:] = [_formed(uses)]
        elif self._plan in ("bk", "fused"):
            if len(uses) == 1:
                uses[0] = uses[0].settled(alone)
            elif self._batch == 1:
                uses[:] = [_formed(uses)]
        self.forms[name] = " + ".join([use.form() for use in uses])
        squared = joint_squared_norm(uses, self._grams)
        if self._plan in TWO_BACKWARDS:
            if not (squared.exact or bool(squared.trusted().all())):
                squared = _recomputed(squared, uses)
            uses.clear()
        return squared

    def _formed_norm(self, name: str, uses: list[Use]) -> SquaredNorm:
        """The norm of gradients that are formed and forgotten: autograd will form their sum."""
        scale = torch.stack([use.bound().sqrt() for use in uses]).sum(0).square()
        uses[:] = [_formed(uses)]
        self.forms[name] = uses[0].form()
        value = torch.maximum(uses[0].squared_norm().value, floor(scale))
        uses.clear()
        return SquaredNorm(value, value)

    def _close(self, k: int) -> None:
        """All norms of a group are here: clip, and form the sum unless a backward will."""
        self._done.add(k)
        names = [name for name in self._groups[k].parameters if name in self._squared]
        dropped = None
        if names:
            total = _total([self._squared[name] for name in names])
            fine = total.trusted() & (total.value < math.inf)
            # One look for the whole group: each costs a GPU a halt.
            if not (self._all_finite and bool(fine.all())):
                total, dropped = self._examined(names)
            norms = total.value.sqrt()
        else:  # no parameter of the group took part: nothing to clip
            norms = self._norms[k]
            dropped = None if self._all_finite else ~self._finite
        factors = self._factors_of(k, norms)
        if dropped is not None:
            factors = factors.masked_fill(dropped, 0.0)
        self._norms[k], self._factors[k] = norms, factors
        for name in names:
            del self._squared[name]
        if self._plan not in TWO_BACKWARDS:
            self._add_sums(names, factors, dropped)

    def _examined(self, names: Sequence[str]) -> tuple[SquaredNorm, Tensor | None]:
        """The group's norms without what cancellation made doubtful, and who cannot be used."""
        for name in names:
            if not self._squared[name].exact and self._uses[name]:
                self._squared[name] = _recomputed(self._squared[name], self._uses[name])
        total = _total([self._squared[name] for name in names])
        total = SquaredNorm(total.value.clamp(min=0), total.scale)
        dropped = ~(torch.isfinite(total.value) & self._finite.to(total.value.device))
        return total, dropped if bool(dropped.any()) else None

    def _add_sums(self, names: Sequence[str], factors: Tensor, dropped: Tensor | None) -> None:
        for name in names:
            for use in self._uses.pop(name):
                if dropped is not None:
                    # One record's overflow must not reach the others: it is silenced, exactly.
                    use = use.without(dropped)
                parameter = self._parameters[name]
                if parameter.grad is None:
                    parameter.grad = use.last_sum(factors)
                else:
                    use.add_weighted_sum(factors, parameter.grad)


def uses_of(call: Call, g: Tensor, batch: int, rows: int = 1) -> list[tuple[str, Use]]:
    """What one call adds to the gradients of its parameters, by their canonical names.

    Under autocast a layer multiplies in half precision: norms and sums are computed in the
    parameters' own, from the input as the layer rounded it. Several rows of one record become
    further positions of it, over which every use sums.
    """
    check_batch(call, batch * rows, g)
    a = call.input()
    if a is not None and a.is_floating_point() and a.dtype != g.dtype:
        a = a.to(g.dtype)
    if g.dtype.itemsize < 4:
        g = g.float()
        a = a.to(g.dtype) if a is not None and a.is_floating_point() else a
    check_joins(call.site, rows)
    if rows > 1:
        g = g.unflatten(0, (batch, rows))
        a = None if a is None else a.unflatten(0, (batch, rows))
    names = call.site.names
    found = call.site.rule.uses(call.site.module, a, g)
    if found.keys() != names.keys():
        module = type(call.site.module).__name__
        raise UnsupportedLayerError(
            f"layer {call.site.name!r} ({module}) trains {', '.join(names)}, but its rule gives "
            f"gradients of {', '.join(found) or 'none'}; expected the same. Weight normalisation "
            "and pruning make a layer's weight of other parameters, for which there is no rule"
        )
    return [(names[local], use) for local, use in found.items()]


def _formed(uses: Sequence[Use]) -> Use:
    """The per-example gradients of one parameter."""
    if len(uses) == 1 and isinstance(uses[0], DirectUse):
        return uses[0]
    return DirectUse(joint_per_example(uses), owned=True)


def _total(parts: Sequence[SquaredNorm]) -> SquaredNorm:
    """The joint squared norm of several parameters."""
    if len(parts) == 1:
        return parts[0]
    value = parts[0].value
    for part in parts[1:]:
        value = value + part.value
    if all(part.exact for part in parts):
        return SquaredNorm(value, value)
    scale = parts[0].scale
    for part in parts[1:]:
        scale = scale + part.scale
    return SquaredNorm(value, scale)


def _recomputed(norm: SquaredNorm, uses: Sequence[Use]) -> SquaredNorm:
    """Replace what cancellation may have understated, one record at a time."""
    value = norm.value.clone()
    # What is left after cancellation is no smaller than what rounding will make of it in the sum.
    least = floor(norm.scale)
    # Zero of zero terms is exact; NaN is not zero.
    for index in (~norm.trusted() & (norm.scale != 0)).nonzero():
        exact = exact_squared_norm([use.rows(index) for use in uses]).value
        value[index] = torch.maximum(exact, least[index])
    return SquaredNorm(value, value)
