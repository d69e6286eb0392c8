"""The check of layer rules against autograd: in one backward, a parameter at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import NamedTuple

import torch
from torch import Tensor

from dpft.privacy.clipping.calls import Call, is_built_in, rule_inputs, uses_of
from dpft.privacy.clipping.capture import Capture
from dpft.privacy.clipping.checks.order import each_gradient, factors_of
from dpft.privacy.clipping.checks.structure import Structure
from dpft.privacy.clipping.groups import Group
from dpft.privacy.clipping.rules import UnsupportedLayerError, Use
from dpft.privacy.clipping.trials import random_state_kept
from dpft.privacy.precision import full_precision

# Records of a batch that rules are checked on, where they may be computed by themselves.
RECORDS = 4

Uses = Sequence[tuple[str, Use]]


class Verified(NamedTuple):
    """What a comparison with autograd has shown.

    Attributes:
        conclusive: whether every gradient was large enough that a wrong rule would have shown. One
            that is zero or nearly so (a layer after one that was initialised with zeros) is what
            any rule gives.
        finite: whether all could be compared, on the records that are finite at least.
    """

    conclusive: bool
    finite: bool


def records_to_check(size: int, real: Tensor | None) -> Tensor:
    """Indices of up to four records of a batch, from its first to its last, ``(n,)`` in int64.

    A microbatch is sorted by length: they differ in padding as much as its records do. Each batch
    is drawn anew, so that others are looked at each time.

    Args:
        size: of the batch, at least 1.
        real: which rows are of records, bool ``(size,)``; None: all. Where none is, it is the
            first, which is nobody's.
    """
    usable = torch.arange(size) if real is None else real.cpu().nonzero().flatten()
    last = len(usable) - 1
    if last < 0:
        return torch.zeros(1, dtype=torch.int64)
    places = sorted({round(last * part / (RECORDS - 1)) for part in range(RECORDS)})
    return usable[torch.tensor(places, dtype=torch.int64)]


def check_rules(
    capture: Capture,
    losses: Tensor,
    structure: Structure,
    parameters: Mapping[str, Tensor],
    groups: Sequence[Group],
    rows: int,
    real: Tensor | None,
    *,
    turn: int,
    retain_graph: bool,
) -> Verified:
    """Compare the rules' sums with autograd's gradients; nothing is clipped yet.

    One backward of losses that have a factor each brings every layer's output gradient, which its
    rule makes a sum of, and every parameter's gradient, which must be that sum. Each is forgotten
    when it was compared: an ordinary backward, which keeps all gradients, takes more memory.

    That a row's output gradient follows its own record's factor is `check_order`'s to say. That a
    rule makes of it the gradient of that record is known of dpft's rules; of somebody else's it is
    looked at, since a sum over all records does not show it.

    Args:
        capture: of the layers' calls.
        losses: per-example losses, ``(B,)``.
        structure: of their graph.
        parameters: the trainable parameters.
        groups: the clipping groups.
        rows: of the model's batch for each loss.
        real: which losses are of records, bool ``(B,)``; None: all.
        turn: see `dpft.privacy.clipping.checks.order.factors_of`.
        retain_graph: whether another backward is to come.

    Raises:
        UnsupportedLayerError: naming a parameter whose rule gives another gradient, or whose
            ``.grad`` was written to.
    """
    halved, batch = structure.halved, len(losses)
    usable = losses.detach().isfinite()
    usable = usable if real is None else usable & real.to(usable.device)
    factors = factors_of(batch, turn).to(losses.device, losses.dtype)
    weighted = torch.where(usable, losses * factors, losses.new_zeros(())).sum()
    named = [group.parameters for group in groups]
    sums = RuleSums(parameters, structure.reached, named, batch)
    before = _versions(parameters)

    @torch.no_grad()
    def listen(call: Call, g: Tensor) -> None:
        call.hold()
        size = g.numel() + sum(x.numel() for x in call.inputs())
        uses, share = uses_of(call, g, batch, rows), 3e-2 if halved else 1e-3
        plain = call.automatic is None
        if plain and _agrees_on_finite(capture, call, g, batch, rows, uses, share):
            sums.alone.update(call.site.names.values())
        if plain and not is_built_in(call.site.rule):
            _check_apart(call, g, batch, rows, uses, records_to_check(batch, real), halved)
        for name, use in uses:
            sums.add(name, use, size, halved)
        call.let_go()

    # A compiled block tells its gradients by tokens, which no way to a parameter goes through.
    tokens = structure.other_leaves if capture.compiled else ()
    with each_gradient(parameters, sums.complete), capture.listening(listen), full_precision():
        torch.autograd.grad(
            weighted,
            [*parameters.values(), *tokens],
            retain_graph=retain_graph,
            allow_unused=True,
        )
    eps = torch.finfo(losses.dtype).eps  # where nothing is halved, the losses are not
    tolerances = (3e-2, 3e-4) if halved else (1e-3, 100 * eps)
    verified = sums.verify(*tolerances)
    for name, version in _versions(parameters).items():
        if version != before[name]:
            raise UnsupportedLayerError(
                f".grad of parameter {name!r} was written to by a backward that was asked for "
                "no gradient: some function of the model does so itself (fused accumulation "
                "of gradients); expected gradients that autograd alone accumulates"
            )
    return verified


def _agrees_on_finite(
    capture: Capture, call: Call, g: Tensor, batch: int, rows: int, uses: Uses, share: float
) -> bool:
    """Compare a rule with autograd on the finite records of a call, where some are not.

    The gradient of the whole batch is not finite then, whatever factor the others have. So the
    layer is run again on the finite ones. Returns whether that was needed and possible.
    """
    a, g = rule_inputs(call, g, batch, rows)
    parts = [x.flatten(1).isfinite().all(1) for x in (a, g) if x is not None]
    index = torch.stack(parts).all(0).nonzero().flatten()
    module, names = call.site.module, call.site.names
    # Of a layer that takes more than its input, or whose hooks would run twice, nothing is known.
    single = len(signature(module.forward).parameters) == 1 and capture.sees_last(module)
    if a is None or len(index) in (0, batch) or not single:
        return False
    x, slope = (part[index].flatten(0, (rows > 1) + (call.positions > 1)) for part in (a, g))
    # Copies, since hooks on the parameters are not for this gradient.
    own = {k: p.detach().requires_grad_() for k, p in module.named_parameters() if k in names}
    try:
        with capture.paused(), torch.enable_grad(), random_state_kept(x):
            y = torch.func.functional_call(module, own, (x,))
            found = torch.autograd.grad(y, [*own.values()], slope, allow_unused=True)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a layer raises that does not run by itself
        return False
    theirs = {names[k]: gradient for k, gradient in zip(own, found, strict=True)}
    for name, use in uses:
        use, expected = use.rows(index), theirs[name]
        ours = use.weighted_sum(g.new_ones(len(index)))
        difference = float((ours if expected is None else ours - expected).norm())
        terms = float(use.squared_norm().value.clamp(min=0).sqrt().sum())
        if math.isfinite(difference) and difference > share * terms:
            raise UnsupportedLayerError(
                f"the rule for parameter {name!r} gives another gradient than autograd on the "
                f"finite records of a batch (difference {difference:.3g}): its layer computes "
                "something else than its type says"
            )
    return True


def _check_apart(
    call: Call, g: Tensor, batch: int, rows: int, uses: Uses, records: Tensor, halved: bool
) -> None:
    """Check that a rule gives a record the same gradient by itself as among others.

    Raises:
        UnsupportedLayerError: naming the parameter where it does not.
    """
    a, g = rule_inputs(call, g, batch, rows)
    tolerance = 3e-2 if halved else 1e-3
    names = call.site.names
    for record in records.to(g.device).unbind():
        index = record.reshape(1)
        own = None if a is None else a[index]
        alone = call.site.rule.uses(call.site.module, own, g[index])
        by_itself = {names[local]: use.per_example() for local, use in alone.items()}
        for name, use in uses:
            among, expected = use.rows(index).per_example(), by_itself[name]
            norm = float(expected.norm())
            if not math.isfinite(norm):  # the record will be dropped
                continue
            same = among.shape == expected.shape
            if not (same and float((among - expected).norm()) <= tolerance * norm):
                raise UnsupportedLayerError(
                    f"the rule for parameter {name!r} gives record {int(record)} another gradient "
                    "by itself than in its batch; expected uses whose row i is of record i alone"
                )


def _versions(parameters: Mapping[str, Tensor]) -> dict[str, tuple[int, int] | None]:
    """Of each ``.grad``, which tensor it is and how often it was changed."""
    grads = {name: parameter.grad for name, parameter in parameters.items()}
    return {n: None if g is None else (id(g), g._version) for n, g in grads.items()}


class RuleSums:
    """The rules' sums of a backward, beside the gradients that autograd forms in it.

    They differ where a layer computes something else than its rule says, where an input was changed
    in place after the call, where a layer has its rows in another order inside, or where a use was
    missed.

    Args:
        parameters: the trainable parameters.
        calls: of their layers, all of which the backward reaches.
        groups: names of the parameters that are clipped together. Beside a large gradient of its
            own group a small one hardly counts; one that is alone in its group is scaled up to
            its own threshold, however small it is.
        records: in the batch, ``B``.

    Attributes:
        alone: of how many calls a parameter's uses were compared on finite records alone.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        calls: Sequence[Call],
        groups: Sequence[Sequence[str]],
        records: int,
    ) -> None:
        self._parameters = parameters
        self._groups = groups
        self._records = records
        self._outstanding = Counter(name for call in calls for name in call.site.names.values())
        self._calls = self._outstanding.copy()
        self.alone: Counter[str] = Counter()
        self._held: dict[str, list[Use]] = {}
        self._sums: dict[str, Tensor] = {}
        self._theirs: dict[str, Tensor] = {}
        self._terms: dict[str, float] = {}
        # Norms of autograd's gradients and of the differences: looked at in the end, since a look
        # makes a GPU halt.
        self._norms: dict[str, Tensor] = {}
        self._apart: dict[str, Tensor] = {}

    def add(self, name: str, use: Use, size: int, half: bool = False) -> None:
        """Take in a use of a parameter.

        Args:
            name: of the parameter.
            use: of all records, whose losses had their factors already.
            size: how many numbers ``use`` keeps alive; if more than its sum has, it is summed now.
            half: whether gradients were rounded to half precision on their way to the layer.
        """
        if half:
            # Each record's gradient is rounded: where records cancel, as of a head's bias, the
            # error is a share of what they had before.
            norms = use.squared_norm().value.clamp(min=0).sqrt().double()
            self._terms[name] = self._terms.get(name, 0.0) + float(norms.sum())
        if size < self._parameters[name].numel():
            self._held.setdefault(name, []).append(use)
        else:
            self._add_to(self._sum(name), use)
        self._outstanding[name] -= 1
        if name in self._theirs:
            self._compare(name)

    def complete(self, name: str, gradient: Tensor) -> None:
        """Take in what autograd has for a parameter."""
        self._theirs[name] = gradient
        self._compare(name)

    def verify(self, tolerance: float, rounding: float) -> Verified:
        """What the comparison has shown.

        Args:
            tolerance: relative difference that rounding explains, of a gradient's norm; of what
                the records had together before they cancelled, where `add` took in half
                precision.
            rounding: of the largest gradient, what arithmetic may leave of one that is zero.

        Raises:
            UnsupportedLayerError: naming a parameter whose rule gives another gradient.
        """
        taking_part = [name for name in self._parameters if self._came(name)]
        with torch.no_grad(), full_precision():
            for name in self._parameters:
                if name not in self._norms:
                    self._compare(name, last=True)
        norms = _numbers(self._norms)
        apart = _numbers(self._apart)
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
        seen = all(name in finite or self.alone[name] == self._calls[name] for name in norms)
        return Verified(conclusive, seen)

    def _came(self, name: str) -> bool:
        return name in self._norms or name in self._theirs

    def _compare(self, name: str, last: bool = False) -> None:
        """Compare, once all uses have arrived, and forget what was compared."""
        if self._outstanding[name] > 0 and not last:
            return
        theirs = self._theirs.pop(name, None)
        ours = self._sum(name)
        del self._sums[name]
        for use in self._held.pop(name, []):
            self._add_to(ours, use)
        theirs = None if theirs is None else theirs.to(ours.dtype)
        self._norms[name] = ours.new_zeros(()) if theirs is None else theirs.norm()
        self._apart[name] = (ours if theirs is None else ours.sub_(theirs)).norm()

    def _sum(self, name: str) -> Tensor:
        if name not in self._sums:
            # Whoever shards may put a parameter together in half precision; its uses are not.
            like = self._parameters[name]
            kind = torch.promote_types(like.dtype, torch.float32)
            self._sums[name] = torch.zeros_like(like, dtype=kind)
        return self._sums[name]

    def _add_to(self, total: Tensor, use: Use) -> None:
        use.add_weighted_sum(total.new_ones(self._records), total)


def _numbers(norms: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: float(norm) for name, norm in norms.items()}
