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

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from dpft.privacy.capture import Call
from dpft.privacy.groups import Group
from dpft.privacy.layers import (
    DirectUse,
    GramCache,
    SquaredNorm,
    Use,
    exact_squared_norm,
    joint_per_example,
    joint_squared_norm,
)
from dpft.privacy.verify import check_batch

PLANS = ("none", "materialised", "lee_kifer", "ghost", "bk", "fused")

TWO_BACKWARDS = ("lee_kifer", "ghost")

# Formed gradients of one group that may live for a moment: 2**26 floats are 256 MiB.
_MOMENT = 2**26


class Pass:
    """What is known of one batch while its backward runs.

    Args:
        plan: one of `PLANS` but ``none``.
        groups: the clipping groups.
        parameters: the trainable parameters, whose ``.grad`` receives the sums.
        losses: per-example losses, ``(B,)``.
        calls: all captured calls of the forward.
        factors_of: clip factors ``(B,)`` of group ``k`` from its norms ``(B,)``.

    Attributes:
        norms: per-example norms by group, ``(B, K)``; complete after `finish`.
        factors: clip factors, ``(B, K)``; 0 for a record whose gradient is not finite.
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
    ) -> None:
        self._plan = plan
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
            and self._batch * sum(parameters[name].numel() for name in group.parameters) <= _MOMENT
            for k, group in enumerate(groups)
        }
        self.norms = losses.new_zeros(self._batch, len(groups))
        self.factors = losses.new_zeros(self._batch, len(groups))
        self.forms: dict[str, str] = {}

    @torch.no_grad()
    def arrived(self, call: Call, g: Tensor) -> None:
        """Take in one call's output gradient; the call's input is forgotten."""
        call.hold()
        check_batch(call, self._batch, g)
        uses = call.site.rule.uses(call.site.module, call.input(), g)
        if self._plan in TWO_BACKWARDS:
            call.let_go()
        else:
            call.release()
        names = call.site.names
        for local, use in uses.items():
            self._uses.setdefault(names[local], []).append(use)
        for name in names.values():
            self._outstanding[name] -= 1
            if not self._outstanding[name]:
                self._complete(name)

    @torch.no_grad()
    def finish(self) -> None:
        """After the backward: complete what never arrived, and form the sums that remain."""
        for name, outstanding in self._outstanding.items():
            if outstanding:
                self._complete(name)
        for k in range(len(self._groups)):
            if k not in self._done:
                self._close(k)

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
        if self._plan in ("materialised", "lee_kifer"):
            uses[:] = [DirectUse(joint_per_example(uses), owned=True)]
        elif self._plan in ("bk", "fused"):
            if len(uses) > 1 and self._batch == 1:
                uses[:] = [DirectUse(joint_per_example(uses), owned=True)]
            elif len(uses) == 1:
                uses[0] = uses[0].settled(alone)
        self.forms[name] = " + ".join(use.form() for use in uses)
        squared = joint_squared_norm(uses, self._grams)
        if self._plan in TWO_BACKWARDS:
            if squared.value is not squared.scale and bool(squared.doubtful().any()):
                squared = _recomputed(squared, uses)
            uses.clear()
        return squared

    def _close(self, k: int) -> None:
        """All norms of a group are here: clip, and form the sum unless a backward will."""
        self._done.add(k)
        names = [name for name in self._groups[k].parameters if name in self._squared]
        if not names:
            factors = self._factors_of(k, self.norms[:, k])
            self.factors[:, k] = factors.masked_fill(~self._finite, 0.0)
            return
        squared = self._trusted(names)
        norms = squared.clamp(min=0).sqrt()
        factors = self._factors_of(k, norms)
        usable = torch.isfinite(squared) & self._finite.to(squared.device)
        unusable = not bool(usable.all())
        if unusable:
            factors = factors.masked_fill(~usable, 0.0)
        self.norms[:, k] = norms
        self.factors[:, k] = factors
        if self._plan not in TWO_BACKWARDS:
            self._add_sums(names, factors, ~usable if unusable else None)

    def _trusted(self, names: Sequence[str]) -> Tensor:
        """The group's squared norms ``(B,)``, without those that cancellation made doubtful."""
        loose = [n for n in names if self._squared[n].value is not self._squared[n].scale]
        if loose:
            doubtful = torch.stack([self._squared[name].doubtful() for name in loose])
            if bool(doubtful.any()):  # one look for the whole group: each costs a GPU a halt
                for name in loose:
                    if self._uses[name]:
                        self._squared[name] = _recomputed(self._squared[name], self._uses[name])
        total = self._squared.pop(names[0]).value
        for name in names[1:]:
            total = total + self._squared.pop(name).value
        return total

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


def _recomputed(norm: SquaredNorm, uses: Sequence[Use]) -> SquaredNorm:
    """Replace what cancellation may have understated, one record at a time."""
    value = norm.value.clone()
    for index in norm.doubtful().nonzero():
        value[index] = exact_squared_norm([use.rows(index) for use in uses]).value
    return SquaredNorm(value, value)
