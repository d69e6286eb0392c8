"""The check of layer rules against autograd: by random weights on the losses of some records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpft.privacy.clipping.calls import Call, uses_of
from dpft.privacy.clipping.capture import Capture
from dpft.privacy.clipping.checks.structure import Structure
from dpft.privacy.clipping.groups import Group
from dpft.privacy.clipping.rules import UnsupportedLayerError, Use
from dpft.privacy.precision import full_precision

# Records of a batch that the rules are checked on, from its first to its last.
_RECORDS = 4

# Of the model's gradients, how large a share is held at a time by `RuleSums`.
_PARTS = 4


class Verified(NamedTuple):
    """What a comparison with autograd has shown.

    Attributes:
        conclusive: whether every gradient was large enough that a wrong rule would have shown. One
            that is zero or nearly so (a layer after one that was initialised with zeros) is what
            any rule gives.
        finite: whether all could be compared.
    """

    conclusive: bool
    finite: bool


def check_rules(
    capture: Capture,
    losses: Tensor,
    structure: Structure,
    parameters: Mapping[str, Tensor],
    groups: Sequence[Group],
    rows: int,
    real: Tensor | None,
) -> Verified:
    """Compare the rules with autograd on some records of the batch; nothing is clipped yet.

    Of the layers' inputs and output gradients only the rows of those records are kept, or their sum
    where that is less, so that a batch that is checked takes hardly more memory than any other.

    Args:
        capture: of the layers' calls.
        losses: per-example losses, ``(B,)``.
        structure: of their graph.
        parameters: the trainable parameters.
        groups: the clipping groups.
        rows: of the model's batch for each loss.
        real: which losses are of records, bool ``(B,)``; None: all.

    Raises:
        UnsupportedLayerError: naming a parameter whose rule gives another gradient, or whose
            ``.grad`` was written to.
    """
    halved = structure.halved
    finite = losses.detach().isfinite()
    usable = (finite if real is None else finite & real.to(finite.device)).nonzero().flatten()
    last = len(usable) - 1
    # None may be left where another rank of a cohort asked for the check.
    parts = range(_RECORDS if last >= 0 else 0)
    chosen = sorted({round(last * part / (_RECORDS - 1)) for part in parts})
    index = usable[torch.tensor(chosen, dtype=torch.int64, device=losses.device)]
    sums = RuleSums(losses[index], parameters, [group.parameters for group in groups])
    before = _versions(parameters)

    @torch.no_grad()
    def listen(call: Call, g: Tensor) -> None:
        call.hold()
        size = (g.numel() + sum(x.numel() for x in call.inputs())) * len(index) // len(losses)
        for name, use in uses_of(call, g, len(losses), rows):
            sums.add(name, use.rows(index.to(g.device)), size, halved)
        call.let_go()

    capture.backward(
        losses,
        structure.reached,
        listen,
        other_leaves=structure.other_leaves,
        retain_graph=True,
    )
    with capture.silent_backward(), full_precision():
        eps = torch.finfo(losses.dtype).eps  # where nothing is halved, the losses are not
        verified = sums.verify(*((3e-2, 3e-4) if halved else (1e-3, 100 * eps)))
    for name, version in _versions(parameters).items():
        if version != before[name]:
            raise UnsupportedLayerError(
                f".grad of parameter {name!r} was written to by a backward that was asked for "
                "no gradient: some function of the model does so itself (fused accumulation "
                "of gradients); expected gradients that autograd alone accumulates"
            )
    return verified


def _versions(parameters: Mapping[str, Tensor]) -> dict[str, tuple[int, int] | None]:
    """Of each ``.grad``, which tensor it is and how often it was changed."""
    grads = {name: parameter.grad for name, parameter in parameters.items()}
    return {n: None if g is None else (id(g), g._version) for n, g in grads.items()}


class RuleSums:
    """Check, by an ordinary backward, that the rules keep the records apart rightly.

    With random weights on the losses, the rules' weighted sums must be autograd's gradients.
    They are not where a layer computes something else than its rule says, where an input was
    changed in place after the call, where rows and losses are in different order, or where a
    use was missed.

    Args:
        losses: per-example losses of some records, ``(n,)``.
        parameters: the trainable parameters.
        groups: names of the parameters that are clipped together. Beside a large gradient of its
            own group a small one hardly counts; one that is alone in its group is scaled up to
            its own threshold, however small it is.
    """

    def __init__(
        self,
        losses: Tensor,
        parameters: Mapping[str, Tensor],
        groups: Sequence[Sequence[str]],
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        weights = 0.5 + torch.rand(len(losses), generator=generator, dtype=torch.float64)
        self._weights = weights.to(losses.device, torch.promote_types(losses.dtype, torch.float32))
        self._losses = losses
        self._parameters = parameters
        self._groups = groups
        self._held: dict[str, list[Use]] = {}
        self._sums: dict[str, Tensor] = {}
        self._terms: dict[str, float] = {}

    def add(self, name: str, use: Use, size: int, half: bool = False) -> None:
        """Take in a use of a parameter by these records.

        Args:
            name: of the parameter.
            use: of the ``n`` records alone.
            size: how many numbers ``use`` keeps alive; if more than its sum has, it is summed now.
            half: whether gradients were rounded to half precision on their way to the layer.
        """
        if half:
            # Autograd rounds each record's gradient anew once it has its weight: where records
            # cancel, as of a head's bias, the error is a share of what they had before.
            norms = use.squared_norm().value.clamp(min=0).sqrt().double()
            terms = float((norms * self._weights.to(norms)).sum())
            self._terms[name] = self._terms.get(name, 0.0) + terms
        if size < self._parameters[name].numel():
            self._held.setdefault(name, []).append(use)
        else:
            self._add_to(self._sum(name), use)

    def verify(self, tolerance: float, rounding: float) -> Verified:
        """Compare with autograd.

        Args:
            tolerance: relative difference that rounding explains, of a gradient's norm; of what
                the records had together before they cancelled, where `add` took in half
                precision.
            rounding: of the largest gradient, what arithmetic may leave of one that is zero.

        Raises:
            UnsupportedLayerError: naming a parameter whose rule gives another gradient.
        """
        norms: dict[str, float] = {}
        apart: dict[str, float] = {}

        @torch.no_grad()
        def compare(name: str, theirs: Tensor | None) -> None:
            ours = self._sum(name)
            del self._sums[name]
            for use in self._held.pop(name, []):
                self._add_to(ours, use)
            theirs = None if theirs is None else theirs.to(ours.dtype)
            norms[name] = 0.0 if theirs is None else float(theirs.norm())
            apart[name] = float((ours if theirs is None else ours.sub_(theirs)).norm())

        _each_gradient((self._losses * self._weights).sum(), self._parameters, compare)
        taking_part = tuple(norms)
        for name in self._parameters:
            if name not in norms:
                compare(name, None)
        # Where some record's gradient overflows, it will be dropped; the others are compared.
        finite = {name for name, norm in norms.items() if math.isfinite(norm)}
        largest = max((norms[name] for name in finite), default=0.0)
        of_group = {
            name: max((norms[other] for other in group if other in finite), default=0.0)
            for group in self._groups
            for name in group
        }
        for name in apart:
            if name not in finite:
                continue
            # A gradient that is zero but for rounding is measured against larger ones.
            terms = self._terms.get(name, 0.0)
            terms = terms if math.isfinite(terms) else 0.0
            allowed = tolerance * max(norms[name], terms)
            allowed += 1e-2 * tolerance * of_group[name] + rounding * largest
            difference = apart[name]
            if not difference <= allowed:
                raise UnsupportedLayerError(
                    f"the rule for parameter {name!r} gives another gradient than autograd "
                    f"(difference {difference:.3g}, expected at most {allowed:.3g}): its layer "
                    "computes something else than its type says, its input was changed in "
                    "place, or the losses are not in the order of the input's rows"
                )
        conclusive = all(
            norms[name] > 0.1 * tolerance * of_group[name] + 10 * rounding * largest
            for name in taking_part
            if name in finite
        )
        return Verified(conclusive, len(finite) == len(norms))

    def _sum(self, name: str) -> Tensor:
        if name not in self._sums:
            # Whoever shards may put a parameter together in half precision; its uses are not.
            like = self._parameters[name]
            kind = torch.promote_types(like.dtype, torch.float32)
            self._sums[name] = torch.zeros_like(like, dtype=kind)
        return self._sums[name]

    def _add_to(self, total: Tensor, use: Use) -> None:
        use.add_weighted_sum(self._weights.to(total.device, total.dtype), total)


def _each_gradient(
    loss: Tensor,
    parameters: Mapping[str, Tensor],
    compare: Callable[[str, Tensor], None],
) -> None:
    """Call ``compare`` with each parameter's gradient, a part of the model at a time.

    All gradients at once would be held beside all activations, as in no other batch. Accumulating
    them one by one would set off hooks that others left on the parameters.
    """
    most = sum(parameter.numel() for parameter in parameters.values()) / _PARTS
    part: list[str] = []
    size = 0
    names = list(parameters)
    for number, name in enumerate(names):
        part.append(name)
        size += parameters[name].numel()
        if number + 1 < len(names) and size + parameters[names[number + 1]].numel() <= most:
            continue
        gradients = torch.autograd.grad(
            loss, [parameters[n] for n in part], retain_graph=True, allow_unused=True
        )
        for n, gradient in zip(part, gradients, strict=True):
            if gradient is not None:
                compare(n, gradient)
        part, size = [], 0
